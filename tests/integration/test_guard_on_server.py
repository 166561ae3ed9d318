"""The guard before a real server: a rejected prompt is never sent."""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any
from uuid import uuid4

import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_shadow import PrefixMutationError, Shadow
from tests.agents import SYSTEM, hand_built, hit
from tests.conftest import VllmServer


def ticking() -> Any:
    """A system prompt that carries a clock, as many do."""
    seconds = itertools.count()
    return lambda: f"{SYSTEM}\nCurrent time: 2026-07-21 12:12:{next(seconds):02d}"


def asked() -> dict[str, Any]:
    return {"messages": [("user", f"How fast do alpine glaciers retreat? ({uuid4()})")]}


async def run(graph: Any, config: Any, *, sync: bool) -> None:
    if sync:
        graph.invoke(asked(), config)
    else:
        await graph.ainvoke(asked(), config)


@pytest.mark.parametrize("mode", ["sync", "async", "watched"])
async def test_reject_stops_a_ticking_prompt_and_sends_nothing(
    llm: ChatOpenAI, vllm_server: VllmServer, mode: str
) -> None:
    shadow = Shadow(llm, guard="reject")
    model = shadow.watch(llm) if mode == "watched" else llm
    graph = hand_built(model, system=ticking()).compile(checkpointer=InMemorySaver())
    if mode != "watched":
        graph = shadow.attach(graph)
    config = {"configurable": {"thread_id": str(uuid4())}}
    before = vllm_server.requests_seen()
    with pytest.raises(PrefixMutationError) as caught:
        await run(graph, config, sync=mode == "sync")
    if mode != "watched":  # a watched model does not show that the run is over
        assert await shadow.drain(timeout=30)
        assert vllm_server.requests_seen() - before == 1
        assert [row.verdict for row in shadow.ledger] == []

    report = caught.value.report
    assert report.kind == "clock"
    assert report.path == "messages[0].content"
    message = str(caught.value)
    assert "clock" in message
    assert "messages[0].content" in message
    assert report.repair in message
    assert SYSTEM not in message
    assert shadow.ledger.guard[0].kind == "clock"


@pytest.mark.parametrize("guard", ["observe", "warn"])
async def test_the_other_modes_let_it_pass(
    llm: ChatOpenAI, caplog: pytest.LogCaptureFixture, guard: Any
) -> None:
    shadow = Shadow(llm, guard=guard)
    graph = shadow.attach(hand_built(llm, batches=3, system=ticking()).compile())
    with caplog.at_level(logging.WARNING, "langgraph_shadow.guard"):
        events = [event async for event in graph.astream(asked(), stream_mode="custom")]
    await shadow.drain(timeout=60)
    kinds = [row.kind for row in shadow.ledger.guard]
    assert kinds == ["clock"] * 3
    assert len([e for e in events if e["type"] == "shadow.guard"]) == 3
    lines = [r for r in caplog.records if r.name == "langgraph_shadow.guard"]
    assert len(lines) == (1 if guard == "warn" else 0)
    priced = [row.message for row in shadow.ledger.guard]
    assert all(re.search(r"would compute \d+ tokens again", message) for message in priced)


async def test_a_break_costs_what_the_report_says(llm: ChatOpenAI) -> None:
    """The branch follows what was really sent, so it hits although its trunk broke the prefix."""
    shadow = Shadow(llm, guard="observe")
    await shadow.attach(hand_built(llm, system=ticking()).compile()).ainvoke(asked())
    assert await shadow.drain(timeout=60)
    assert len(shadow.ledger) == 2
    assert all(map(hit, shadow.ledger))
