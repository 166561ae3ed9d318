"""A server that goes away, comes back, forgets, or says something untrue about itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from langgraph_shadow import Shadow
from tests.faults import scripts
from tests.faults.harness import (
    BATCHES,
    BRANCH,
    MODES,
    Mode,
    accounted,
    model,
    run,
    shadow_on,
)
from tests.faults.server import (
    FaultServer,
    Script,
    render,
    serve_chat,
    serve_completion,
    serve_metrics,
    serve_tokenize,
)

pytestmark = pytest.mark.parametrize("mode", MODES)


def test_connection_refused(mode: Mode) -> None:
    with FaultServer() as server, FaultServer() as dead:
        dead.stop()
        plain = run(mode, server)
        shadow = Shadow(model(dead), branches=[BRANCH])
        assert run(mode, server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert (row.mode, row.verdict) == ("mirror", "failed")
        assert "could not be reached" in row.reason


def test_restart_between_batches(mode: Mode) -> None:
    """The branch in flight is lost; the next one finds the server, and learns that it changed."""

    def restart(call: int) -> None:
        if call == 1:
            server.arrived.wait(10)
            server.metrics = serve_metrics
            server.restart()

    with FaultServer() as server:
        server.arrived.set()
        plain = run(mode, server, hook=restart)
        assert plain.error is None
        server.arrived.clear()
        server.branch = scripts.from_the_second(scripts.slow_headers, serve_chat)
        server.metrics = scripts.WRONG_BLOCKS
        shadow = shadow_on(server)
        assert run(mode, server, shadow, restart) == plain
    accounted(shadow, fired=BATCHES)
    lost, found = shadow.ledger
    assert lost.verdict == "failed"
    assert "could not be reached" in lost.reason
    assert (found.verdict, found.reason) == ("update", "")
    assert found.predicted == found.cached


@pytest.mark.parametrize("where", ["branch", "tokenize", "metrics"])
def test_overloaded_and_well_again(mode: Mode, where: str) -> None:
    """An overload is no property of the server: it is asked again for the next batch."""
    first = threading.Event()

    def recover(call: int) -> None:
        if call == 1:
            first.wait(10)
            setattr(server, where, well)

    with FaultServer() as server:
        well = getattr(server, where)
        first.set()
        plain = run(mode, server, hook=recover)
        first.clear()
        setattr(server, where, scripts.status(503))
        shadow = shadow_on(server, on_event=lambda _: first.set())
        assert run(mode, server, shadow, recover) == plain
    accounted(shadow, fired=BATCHES)
    bad, good = shadow.ledger
    assert (bad.verdict, bad.predicted) == ("update" if where == "metrics" else "failed", None)
    assert good.verdict == "update"
    assert good.predicted == good.cached
    assert good.cached


def test_evicted(mode: Mode) -> None:
    """The cache was reset: the prediction is wrong, and the ledger says so."""
    with FaultServer(evicting=True) as server:
        plain = run(mode, server)
        shadow = shadow_on(server)
        assert run(mode, server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert (row.verdict, row.cached, row.as_predicted) == ("update", 0, False)
        assert row.predicted
    assert "predicted = cached on 0 of 2" in shadow.ledger.summary()


def test_wrong_block_size(mode: Mode) -> None:
    with FaultServer(metrics=scripts.WRONG_BLOCKS) as server:
        plain = run(mode, server)
        shadow = shadow_on(server)
        assert run(mode, server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert (row.verdict, row.as_predicted) == ("update", False)


def forgets_calls(body: Mapping[str, Any]) -> str:
    """A template that drops the tool calls before the newest user turn, so that prompts splice."""
    messages = [dict(m) for m in body["messages"]]
    last = max(i for i, m in enumerate(messages) if m["role"] == "user")
    for message in messages[:last]:
        message.pop("tool_calls", None)
    return render({**body, "messages": messages})


@pytest.mark.parametrize(
    ("completion", "verdict", "reason"),
    [
        (serve_completion, "update", ""),
        (scripts.status(500), "failed", "answered 500"),
        (scripts.reset_in_stream, "failed", "could not be reached"),
        (scripts.stream(scripts.BAD_UTF8), "failed", "cannot be read"),
        (scripts.events({"choices": []}), "failed", "before its first token"),
        (scripts.page(scripts.HTML, code=404), "failed", "answered 404"),
    ],
    ids=["well", "status-500", "reset", "invalid-utf8", "empty-choices", "html-404"],
)
def test_spliced_branch(mode: Mode, completion: Script, verdict: str, reason: str) -> None:
    with FaultServer(completion=completion, template=forgets_calls) as server:
        plain = run(mode, server)
        shadow = shadow_on(server)
        assert run(mode, server, shadow) == plain
        assert server.requests["/v1/completions"] == BATCHES
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert row.verdict == verdict, row.reason
        assert reason in row.reason
        if verdict == "update":
            assert row.carrier == "nonce_splice"
            assert row.predicted == row.cached


def test_tokenize_goes_away(mode: Mode) -> None:
    """A proxy begins to block `/tokenize` in mid-run: no prediction any more, and an answer."""

    def block(call: int) -> None:
        if call == 1:
            first.wait(10)
            server.tokenize = scripts.page(b"{}", code=403)

    first = threading.Event()
    with FaultServer() as server:
        first.set()
        plain = run(mode, server, hook=block)
        first.clear()
        server.tokenize = serve_tokenize
        shadow = shadow_on(server, on_event=lambda _: first.set())
        assert run(mode, server, shadow, block) == plain
    accounted(shadow, fired=BATCHES)
    before, after = shadow.ledger
    assert before.predicted == before.cached
    assert (after.verdict, after.predicted) == ("update", None)
