"""A server that misbehaves: the run is what it would have been, and every branch has its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.faults import scripts
from tests.faults.harness import BATCHES, MODES, Mode, accounted, run, shadow_on
from tests.faults.server import SENTENCE, FaultServer, Script

SHORT = {"timeout": 0.4}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and what becomes of its branches.

    Attributes:
        name: For the test's id.
        verdict: Every row's verdict.
        reason: Words in every row's reason.
        branch: What branches get; served well when left out.
        tokenize: What `/tokenize` gets.
        metrics: What `/metrics` gets.
        limits: Limits of the shadow.
    """

    name: str
    verdict: str
    reason: str = ""
    branch: Script | None = None
    tokenize: Script | None = None
    metrics: Script | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)

    def server(self) -> FaultServer:
        given = {"branch": self.branch, "tokenize": self.tokenize, "metrics": self.metrics}
        return FaultServer(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def words(text: str, finish: str = "stop") -> Script:
    return scripts.answer(text, finish=finish)


FAULTS = [
    *(
        Fault(f"status-{code}", "failed", f"the server answered {code}", scripts.status(code))
        for code in (400, 401, 403, 404, 409, 413, 422, 429, 500, 502, 503)
    ),
    Fault("context-length", "failed", "maximum context", scripts.status(400, scripts.TOO_LONG)),
    Fault("html-error", "failed", "answered 502", scripts.page(scripts.HTML, code=502)),
    Fault("reset", "failed", "could not be reached", scripts.reset_at_once),
    Fault("reset-in-stream", "failed", "could not be reached", scripts.reset_in_stream),
    Fault("cut-in-stream", "failed", "could not be reached", scripts.cut_in_stream),
    Fault("not-http", "failed", "could not be reached", scripts.not_http),
    Fault("slow-headers", "failed", "no verdict within", scripts.slow_headers, limits=SHORT),
    Fault("stalled", "failed", "no verdict within", scripts.stalled, limits=SHORT),
    Fault("endless", "skip", "", scripts.endless),
    Fault("endless-comments", "failed", "no verdict", scripts.endless_comments, limits=SHORT),
    Fault("endless-line", "failed", "no verdict", scripts.endless_line, limits=SHORT),
    Fault("invalid-json", "failed", "cannot be read", scripts.stream(b'data: {"choices": [\n\n')),
    Fault("no-chunk", "failed", "cannot be read", scripts.events(["not", "a", "chunk"])),
    Fault("null-chunk", "failed", "cannot be read", scripts.events("null")),
    Fault("invalid-utf8", "failed", "cannot be read", scripts.stream(scripts.BAD_UTF8)),
    Fault("error-in-stream", "failed", "died", scripts.events({"error": {"message": "died"}})),
    Fault("empty-choices", "failed", "before its first token", scripts.events({"choices": []})),
    Fault("empty-stream", "failed", "before its first token", scripts.events()),
    Fault("html", "failed", "before its first token", scripts.page(scripts.HTML)),
    Fault("json-for-stream", "failed", "", scripts.page(b"{}", kind="application/json")),
    Fault("tool-call", "skip", "tool call", scripts.tool_call),
    Fault("html-as-text", "skip", "", words("<script>alert(1)</script><h1>Hello</h1>")),
    Fault("ten-thousand", "skip", "", words("word " * scripts.LONG, "length")),
    Fault("nothing", "skip", "", words("")),
    Fault("control", "skip", "", words("\x00\x07\u202e\u2066")),
    Fault("tokenize-404", "update", "", tokenize=scripts.page(b"{}", code=404)),
    Fault("tokenize-403", "update", "", tokenize=scripts.page(scripts.HTML, code=403)),
    Fault("tokenize-html", "update", "", tokenize=scripts.page(scripts.HTML)),
    Fault("tokenize-bad-utf8", "update", "", tokenize=scripts.page(b'{"tokens": "\xff"}')),
    Fault("tokenize-no-tokens", "update", "", tokenize=scripts.page(b'{"count": 3}')),
    Fault("tokenize-400", "failed", "refused", tokenize=scripts.status(400, "no template")),
    Fault("tokenize-413", "failed", "refused", tokenize=scripts.page(b"big", code=413)),
    Fault("tokenize-503", "failed", "answered 503", tokenize=scripts.status(503)),
    Fault("tokenize-reset", "failed", "reached", tokenize=scripts.reset_at_once),
    Fault("tokenize-slow", "failed", "", tokenize=scripts.slow_headers, limits=SHORT),
    Fault("metrics-404", "update", "", metrics=scripts.page(b"no", code=404)),
    Fault("metrics-503", "update", "", metrics=scripts.page(b"no", code=503)),
    Fault("metrics-html", "update", "", metrics=scripts.page(scripts.HTML)),
    Fault("metrics-empty", "update", "", metrics=scripts.page(b"", kind="text/plain")),
    Fault("metrics-bad-utf8", "update", "", metrics=scripts.page(b"\xff\xfe{", kind="text/plain")),
    Fault("metrics-reset", "update", "", metrics=scripts.reset_at_once),
    Fault("metrics-slow", "update", "", metrics=scripts.slow_headers),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_server_fault(fault: Fault, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_shadow.runner.engine._METRICS_TIMEOUT_S", 0.2)
    with fault.server() as server:
        plain = run(mode, server)
        assert plain.error is None
        shadow = shadow_on(server, **fault.limits)
        assert run(mode, server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert row.verdict == fault.verdict, row.reason
        assert fault.reason in row.reason
        assert row.text == (SENTENCE if fault.verdict == "update" else "")
