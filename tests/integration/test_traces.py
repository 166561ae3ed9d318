"""Traced agents with a shadow: their trees stay their own, and each branch has one beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from blockbuster import blockbuster_ctx
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode
from langsmith import traceable, tracing_context

from langgraph_shadow import Shadow, fact_check, user_update
from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.delivery.ledger import LedgerRow
from tests.agents import TOOLS, created, hand_built
from tests.langsmith_endpoint import LangSmithEndpoint, langsmith_endpoint

BATCHES = 2


@pytest.fixture
def endpoint() -> Iterator[LangSmithEndpoint]:
    with langsmith_endpoint() as endpoint:
        yield endpoint


def question(thread: str) -> dict[str, Any]:
    return {"messages": [("user", f"How fast do alpine glaciers retreat? ({thread})")]}


def by_node(llm: ChatOpenAI, shadow: Shadow | None) -> Any:
    if shadow is None:
        return hand_built(llm, batches=BATCHES).compile()
    tools = shadow.tool_node(ToolNode(TOOLS))
    return hand_built(shadow.watch(llm), batches=BATCHES, tools_node=tools).compile()


def by_callbacks(llm: ChatOpenAI, shadow: Shadow | None) -> Any:
    graph = hand_built(llm, batches=BATCHES).compile()
    return graph if shadow is None else shadow.attach(graph)


def by_middleware(llm: ChatOpenAI, shadow: Shadow | None) -> Any:
    graph = created(
        llm, batches=BATCHES, middleware=[] if shadow is None else [shadow.middleware()]
    )
    return graph if shadow is None else shadow.attach(graph)


DOORS = [by_node, by_callbacks, by_middleware]


def traced(
    graph: Any, thread: str, endpoint: LangSmithEndpoint, run: str, **context: Any
) -> dict[str, Any]:
    """Run a graph with tracing on; returns its root run."""
    config = {"configurable": {"thread_id": thread}, "run_name": f"orchestrator-{run}"}
    with tracing_context(
        **{"enabled": True, "client": endpoint.client, "project_name": "glaciers", **context}
    ):
        if run == "sync":
            graph.invoke(question(thread), config)
        else:
            asyncio.run(graph.ainvoke(question(thread), config))
    return next((r for r in reversed(endpoint.runs) if r["name"] == config["run_name"]), {})


def without_middleware(tree: list[list[str]]) -> list[list[str]]:
    """The tree without the step that LangChain shows around each middleware's hook."""

    def ours(name: str) -> bool:
        return name.startswith("ShadowMiddleware.")

    return sorted([n for n in path if not ours(n)] for path in tree if not ours(path[-1]))


def rows(shadow: Shadow) -> dict[str | None, LedgerRow]:
    return {row.run_id: row for row in shadow.ledger}


@pytest.mark.parametrize("build", DOORS)
def test_the_orchestrators_tree_stays_its_own(
    llm: ChatOpenAI, endpoint: LangSmithEndpoint, build: Any
) -> None:
    thread = str(uuid4())
    plain = traced(build(llm, None), thread, endpoint, "sync")
    before = endpoint.tree(plain["trace_id"])

    shadow = Shadow(llm, branches=[user_update(), fact_check("Ice melts.")])
    root = traced(build(llm, shadow), thread, endpoint, "sync")
    assert shadow.drain_sync(timeout=60)

    assert without_middleware(endpoint.tree(root["trace_id"])) == before
    assert len(before) > 2 * BATCHES
    branches = endpoint.branches
    assert len(branches) == 2 * BATCHES == len(shadow.ledger)
    beside = {r["trace_id"] for r in endpoint.runs} - {plain["trace_id"], root["trace_id"]}
    assert beside == {b["id"] for b in branches}

    calls = {r["id"]: r for r in endpoint.runs if r["trace_id"] == root["trace_id"]}
    for branch in branches:
        assert branch.get("parent_run_id") is None
        assert branch["trace_id"] == branch["id"]
        assert branch["id"] not in calls
        metadata = branch["extra"]["metadata"]
        assert metadata["thread_id"] == thread
        assert metadata["shadow_of_trace"] == root["trace_id"]
        asked = calls[metadata["shadow_of_run"]]
        assert asked["run_type"] == "llm"
        answer = asked["outputs"]["generations"][0][0]["message"]["kwargs"]
        assert [c["id"] for c in answer["tool_calls"]] == metadata["shadow_of_tool_calls"]
        assert branch["session_name"] == asked["session_name"] == "glaciers"


@pytest.mark.parametrize("run", ["sync", "async"])
def test_the_metadata_is_the_ledgers(
    llm: ChatOpenAI, endpoint: LangSmithEndpoint, run: str
) -> None:
    events: list[ShadowEvent] = []
    shadow = Shadow(llm, branches=[user_update()], on_event=events.append)
    graph = by_callbacks(llm, shadow)
    if run == "async":
        graph = AndDrain(graph, shadow)
    traced(graph, str(uuid4()), endpoint, run)
    assert shadow.drain_sync(timeout=60)

    by_id = rows(shadow)
    assert {b["id"] for b in endpoint.branches} == set(by_id) == {e.run_id for e in events}
    assert {e.shadow_of_run for e in events} == {r.shadow_of_run for r in shadow.ledger}
    for branch in endpoint.branches:
        row, metadata = by_id[branch["id"]], branch["extra"]["metadata"]
        assert row.cached is not None
        assert metadata["predicted"] == metadata["cached"] == row.cached
        assert metadata["usage_metadata"] == {
            "input_tokens": row.prompt_tokens,
            "output_tokens": row.generated,
            "total_tokens": (row.prompt_tokens or 0) + (row.generated or 0),
            "input_token_details": {"cache_read": row.cached},
        }
        for name in ("mode", "launch", "carrier", "verdict", "prompt_tokens", "ttft_ms", "lag_ms"):
            assert metadata[name] == getattr(row, name)
        assert metadata["shadow_of_run"] == row.shadow_of_run
        assert metadata["shadow_of_tool_calls"] == list(row.tool_call_ids)
        assert metadata["node"] == "agent"
        assert branch["outputs"]["verdict"] == row.verdict
        assert branch["start_time"] < branch["end_time"]


class AndDrain:
    """A graph whose branches end in the loop that it ran in."""

    def __init__(self, graph: Any, shadow: Shadow) -> None:
        self.graph, self.shadow = graph, shadow

    async def ainvoke(self, *arguments: Any) -> None:
        await self.graph.ainvoke(*arguments)
        assert await self.shadow.drain(timeout=60)


def test_a_branch_that_ends_after_the_root_is_posted(
    llm: ChatOpenAI, endpoint: LangSmithEndpoint
) -> None:
    shadow = Shadow(llm, branches=[user_update()], launch="gap", late="deliver")
    root = traced(by_callbacks(llm, shadow), str(uuid4()), endpoint, "sync")
    assert shadow.drain_sync(timeout=60)
    last = max(endpoint.branches, key=lambda b: b["end_time"])
    assert last["end_time"] > root["end_time"]
    assert len(endpoint.branches) == BATCHES


def test_the_trace_begins_above_the_graph(llm: ChatOpenAI, endpoint: LangSmithEndpoint) -> None:
    """The graph is no root where a traced function calls it; its project counts, too."""
    shadow = Shadow(llm, branches=[user_update()])
    graph = by_callbacks(llm, shadow)
    thread = str(uuid4())

    @traceable(name="service", project_name="service-project", client=endpoint.client)
    def service() -> None:
        graph.invoke(question(thread), {"configurable": {"thread_id": thread}})

    with tracing_context(enabled=True, client=endpoint.client):
        service()
    assert shadow.drain_sync(timeout=60)
    root = next(r for r in endpoint.runs if r["name"] == "service")
    assert len(endpoint.branches) == BATCHES
    for branch in endpoint.branches:
        assert branch["extra"]["metadata"]["shadow_of_trace"] == root["id"]
        assert branch["session_name"] == "service-project"


async def test_a_traced_async_run_never_blocks(
    llm: ChatOpenAI, endpoint: LangSmithEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    shadow = Shadow(llm, branches=[user_update()])
    graph = by_callbacks(llm, shadow)
    config = {"configurable": {"thread_id": str(uuid4())}}
    with blockbuster_ctx(), tracing_context(enabled=True, client=endpoint.client):
        await graph.ainvoke(question("blocking"), config)
        assert await shadow.drain(timeout=60)
    assert [r.getMessage() for r in caplog.records if r.name.startswith("langgraph_shadow")] == []
    assert {b["id"] for b in endpoint.branches} == {row.run_id for row in shadow.ledger}
    assert len(shadow.ledger) == BATCHES


def test_nothing_is_posted_where_tracing_is_off(
    llm: ChatOpenAI, endpoint: LangSmithEndpoint
) -> None:
    shadow = Shadow(llm, branches=[user_update()])
    traced(by_callbacks(llm, shadow), str(uuid4()), endpoint, "sync", enabled=False)
    assert shadow.drain_sync(timeout=60)
    assert endpoint.runs == []
    assert [row.run_id for row in shadow.ledger] == [None] * BATCHES
    assert all(row.shadow_of_run for row in shadow.ledger)
