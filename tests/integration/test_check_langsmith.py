"""`check` on a LangSmith export of a run that this test traces itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from langchain_openai import ChatOpenAI
from langsmith import tracing_context
from typer.testing import CliRunner

from langgraph_shadow import Shadow, user_update
from langgraph_shadow.commands.check import check
from langgraph_shadow.traces.recording import read_recording
from tests.agents import SYSTEM, hand_built
from tests.conftest import VllmServer
from tests.langsmith_endpoint import LangSmithEndpoint, langsmith_endpoint

app = typer.Typer()
app.command()(check)

BATCHES = 3
CALLS = BATCHES + 1


@pytest.fixture
def endpoint() -> Iterator[LangSmithEndpoint]:
    with langsmith_endpoint() as endpoint:
        yield endpoint


def a_clock_that_ticks_before_call(number: int) -> Callable[[], str]:
    """A system prompt that no cache holds, with a clock in it that stands still but for once."""
    calls, name = iter(range(CALLS + 1)), uuid4().hex
    return lambda: f"{name}: {SYSTEM} It is 2026-03-01 09:{30 + (next(calls) >= number)}:00."


def traced(llm: Any, endpoint: LangSmithEndpoint, thread: str, system: Any) -> None:
    graph = hand_built(llm, batches=BATCHES, system=system).compile()
    with tracing_context(enabled=True, client=endpoint.client, project_name="glaciers"):
        graph.invoke(
            {"messages": [("user", "How fast do alpine glaciers retreat?")]},
            {"configurable": {"thread_id": thread}},
        )


def export(folder: Path, endpoint: LangSmithEndpoint, *, lines: bool) -> Path:
    """The runs, as the API returns them: newest first, in a list or one per line."""
    file = folder / "runs.json"
    runs = endpoint.runs[::-1]
    text = "\n".join(map(json.dumps, runs)) if lines else json.dumps({"runs": runs}, indent=2)
    file.write_text(text, encoding="utf-8")
    return file


def run(*arguments: str) -> tuple[int, Any]:
    outcome = CliRunner().invoke(app, [*arguments, "--json"])
    assert outcome.stdout, outcome.stderr
    return outcome.exit_code, json.loads(outcome.stdout)


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("priced", [True, False])
def test_exactly_the_planted_clock_is_found(
    llm: ChatOpenAI,
    vllm_server: VllmServer,
    endpoint: LangSmithEndpoint,
    tmp_path: Path,
    lines: bool,
    priced: bool,
) -> None:
    # under `gap` no branch computes a prompt before the orchestrator, whose hits are judged here
    shadow = Shadow(llm, branches=[user_update()], guard="off", launch="gap", late="deliver")
    traced(shadow.watch(llm), endpoint, "steady", lambda: SYSTEM)
    traced(shadow.watch(llm), endpoint, "ticking", a_clock_that_ticks_before_call(2))
    assert shadow.drain_sync(timeout=60)
    assert len(endpoint.branches) == 2 * BATCHES
    file = export(tmp_path, endpoint, lines=lines)
    where = ["--base-url", vllm_server.base_url] if priced else []

    code, said = run(str(file), *where)

    assert code == 1
    assert (said["format"], said["requests"], said["unknown"]) == ("langsmith", 2 * CALLS, [])
    (found,) = said["breaks"]
    assert {k: found[k] for k in ("thread", "node", "kind", "path", "before", "after")} == {
        "thread": "ticking",
        "node": "agent",
        "kind": "clock",
        "path": "messages[0].content",
        "before": "09:30:00.",
        "after": "09:31:00.",
    }
    assert found["repair"].startswith("Freeze the time")
    recorded = [r for r in read_recording(file).requests if r.trunk.key.thread == "ticking"]
    assert found["prompt_tokens"] == recorded[2].prompt_tokens
    assert found["cached_tokens"] == recorded[2].cached_tokens < recorded[1].prompt_tokens
    if priced:
        # What the guard says that the clock cost is what the server did not find in its cache.
        again = recorded[1].prompt_tokens - found["cached_tokens"]
        assert not found["estimated"]
        assert abs(found["lost_tokens"] - again) <= (vllm_server.metrics().block_size or 0)
        assert said["summary"]["prompt_tokens"] == sum(
            r.prompt_tokens or 0 for r in read_recording(file).requests
        )
    steady, ticking = sorted(said["lines"], key=lambda line: line["thread"])
    assert (steady["breaks"], ticking["breaks"]) == (0, 1)
    assert steady["reusable_share"] > ticking["reusable_share"] > 0
    assert steady["reused_share"] > ticking["reused_share"] > 0


def test_the_recorded_request_is_rebuilt_exactly(
    llm: ChatOpenAI, endpoint: LangSmithEndpoint, tmp_path: Path
) -> None:
    sent: list[dict[str, Any]] = []

    class Recorded(ChatOpenAI):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            sent.append(self._get_request_payload(messages, **kwargs))
            return super()._generate(messages, *args, **kwargs)

    model = Recorded(**{name: getattr(llm, name) for name in llm.model_fields_set})
    traced(model, endpoint, "t", lambda: SYSTEM)

    read = read_recording(export(tmp_path, endpoint, lines=True)).requests

    assert len(read) == len(sent) == CALLS
    for request, body in zip(read, sent, strict=True):
        assert list(request.trunk.messages) == body["messages"]
        assert list(request.trunk.tools) == body["tools"]
        assert request.trunk.model == body["model"]


def test_hidden_inputs_are_unknown(llm: ChatOpenAI, tmp_path: Path) -> None:
    with langsmith_endpoint() as endpoint:
        endpoint.client._hide_inputs = True
        traced(llm, endpoint, "t", a_clock_that_ticks_before_call(1))
        code, said = run(str(export(tmp_path, endpoint, lines=True)))

    assert code == 3
    assert (said["requests"], said["breaks"], len(said["unknown"])) == (0, [], CALLS)
    assert {u["thread"] for u in said["unknown"]} == {"t"}
    assert all("not in the recording" in u["reason"] for u in said["unknown"])
