"""Every example runs on the real server, sync and async, and each of its batches hits."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from graphs.run import run, run_sync
from langgraph_shadow import Shadow
from tests.conftest import VllmServer

ROOT = Path(__file__).resolve().parents[2]
GRAPHS: dict[str, str] = json.loads((ROOT / "langgraph.json").read_text())["graphs"]

BATCHES = {  # and how many agents they belong to
    "research_agent": (3, 1),
    "created_agent": (3, 1),
    "deep_agent": (7, 2),
    "supervisor": (5, 2),
    "swarm": (5, 3),  # an agent that is handed back to runs in a new namespace
    "subgraph_agent": (3, 1),
}


@pytest.fixture
def example(
    request: pytest.FixtureRequest, vllm_server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Shadow]:
    """A fresh graph and its shadow: an example's model belongs to the first loop that uses it."""
    monkeypatch.setenv("LANGGRAPH_SHADOW_BASE_URL", vllm_server.base_url)
    monkeypatch.setenv("LANGGRAPH_SHADOW_MODEL", vllm_server.model)
    monkeypatch.setenv("LANGGRAPH_SHADOW_SMALL_MODEL", "1")
    path, variable = GRAPHS[request.param].split(":")
    module = runpy.run_path(str(ROOT / path))
    return module[variable], module["shadow"]


def new_question() -> str:
    """One that no other test has asked: its branches would be in the cache already."""
    return f"How do I read CSV file {uuid4().int} into dictionaries?"


def check(shadow: Shadow, name: str) -> None:
    batches, agents = BATCHES[name]
    assert len(shadow.ledger) == batches
    assert len({row.tool_call_ids for row in shadow.ledger}) == batches
    assert len({row.namespace for row in shadow.ledger}) == agents
    for row in shadow.ledger:
        assert row.verdict in ("update", "skip"), row.reason
        assert row.predicted == row.cached != 0
    assert shadow.ledger.guard == ()


@pytest.mark.parametrize(
    ("example", "name"), zip(GRAPHS, GRAPHS, strict=True), indirect=["example"]
)
async def test_async(
    example: tuple[Any, Shadow], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, shadow = example
    assert await run(graph, shadow, new_question(), thread=str(uuid4()))
    check(shadow, name)
    assert capsys.readouterr().out.count("· ") >= 7


@pytest.mark.parametrize(
    ("example", "name"), zip(GRAPHS, GRAPHS, strict=True), indirect=["example"]
)
def test_sync(example: tuple[Any, Shadow], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    graph, shadow = example
    assert run_sync(graph, shadow, new_question(), thread=str(uuid4()))
    check(shadow, name)
    assert capsys.readouterr().out.count("· ") >= 7


async def test_the_hand_built_example_names_what_it_saw(
    vllm_server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tools really read the documentation: the answer to a search is found in the state."""
    monkeypatch.setenv("LANGGRAPH_SHADOW_BASE_URL", vllm_server.base_url)
    monkeypatch.setenv("LANGGRAPH_SHADOW_MODEL", vllm_server.model)
    monkeypatch.setenv("LANGGRAPH_SHADOW_SMALL_MODEL", "1")
    module = runpy.run_path(str(ROOT / "graphs/research_agent.py"))
    state = await module["graph"].ainvoke({"messages": [("user", new_question())]})
    await module["shadow"].drain(timeout=60)
    results = [m for m in state["messages"] if m.type == "tool"]
    assert [m.name for m in results] == ["search_docs", "read_doc", "read_doc"]
    assert all("There is no entry" not in m.text for m in results)
