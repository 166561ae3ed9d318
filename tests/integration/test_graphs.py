"""Every example runs on the real server, sync and async, and each of its batches hits."""

from __future__ import annotations

import functools
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from openai import DefaultAsyncHttpxClient

from graphs import model
from graphs.run import run, run_sync
from graphs.small_model import SmallModel
from langgraph_shadow import Shadow
from tests.agents import hit
from tests.conftest import VllmServer

ROOT = Path(__file__).resolve().parents[2]
GRAPHS: dict[str, str] = json.loads((ROOT / "langgraph.json").read_text())["graphs"]

BATCHES = {  # and how many histories they belong to
    "research_agent": (3, 1),
    "created_agent": (3, 1),
    "deep_agent": (7, 2),
    "supervisor": (5, 2),
    "swarm": (5, 3),  # an agent that is handed back to runs in a new namespace
    "subgraph_agent": (3, 1),
    "specialists": (3, 1),
    "specialists_role_first": (3, 1),
}

Load = Callable[[str], tuple[Any, Shadow]]


@pytest.fixture
def load(vllm_server: VllmServer, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a fresh graph and its shadow, as `langgraph dev` would."""
    monkeypatch.setenv("LANGGRAPH_SHADOW_BASE_URL", vllm_server.base_url)
    monkeypatch.setenv("LANGGRAPH_SHADOW_MODEL", vllm_server.model)
    monkeypatch.setenv("LANGGRAPH_SHADOW_SMALL_MODEL", "1")
    # the default client is the whole process's, and breaks in a second test's event loop
    own = functools.partial(SmallModel, http_async_client=DefaultAsyncHttpxClient())
    monkeypatch.setattr(model, "SmallModel", own)

    def load(name: str) -> tuple[Any, Shadow]:
        path, variable = GRAPHS[name].split(":")
        module = runpy.run_path(str(ROOT / path))
        return module[variable], module["shadow"]

    return load


def new_question() -> str:
    """One that no other test has asked: its branches would be in the cache already."""
    return f"How do I read CSV file {uuid4().int} into dictionaries?"


def check(shadow: Shadow, name: str) -> None:
    batches, histories = BATCHES[name]
    assert len(shadow.ledger) == batches
    assert len({row.tool_call_ids for row in shadow.ledger}) == batches
    assert len({row.namespace for row in shadow.ledger}) == histories
    for row in shadow.ledger:
        assert row.verdict in ("update", "skip"), row.reason
        assert hit(row), row
        assert row.cached
    assert shadow.ledger.guard == ()
    calls = shadow.ledger.calls
    assert any(call.called for call in calls)
    assert not calls[-1].called
    assert {call.namespace for call in calls} >= {row.namespace for row in shadow.ledger}


@pytest.mark.parametrize("name", GRAPHS)
async def test_async(load: Load, name: str) -> None:
    graph, shadow = load(name)
    assert await run(graph, shadow, new_question(), thread=str(uuid4()))
    check(shadow, name)


@pytest.mark.parametrize("name", GRAPHS)
def test_sync(load: Load, name: str) -> None:
    graph, shadow = load(name)
    assert run_sync(graph, shadow, new_question(), thread=str(uuid4()))
    check(shadow, name)


async def test_an_example_reads_the_documentation(load: Load) -> None:
    graph, shadow = load("research_agent")
    state = await graph.ainvoke({"messages": [("user", new_question())]})
    await shadow.drain(timeout=60)
    results = [m for m in state["messages"] if m.type == "tool"]
    assert [m.name for m in results] == ["search_docs", "read_doc", "read_doc"]
    assert all("There is no entry" not in m.text for m in results)
