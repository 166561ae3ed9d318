"""What a batch may look like: parallel calls, any tool node, interrupts, retries, an early end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt

from langgraph_shadow import Shadow, ShadowEvent, fact_check, memory_note, user_update
from tests.agents import TOOLS, created, hand_built, hit, search


def asked() -> dict[str, Any]:
    return {"messages": [("user", f"How fast do alpine glaciers retreat? ({uuid4()})")]}


def thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": str(uuid4())}}


def assert_hits(shadow: Shadow, batches: int) -> None:
    assert len(shadow.ledger) == batches, shadow.ledger.rows
    for row in shadow.ledger:
        assert row.verdict in ("update", "skip"), row.reason
        assert hit(row), row
        assert row.cached


@pytest.mark.parametrize("kind", ["hand-built", "created"])
async def test_parallel_calls_are_one_batch_in_call_order(llm: ChatOpenAI, kind: str) -> None:
    shadow = Shadow(llm, guard="reject")
    if kind == "created":
        graph = created(llm, parallel=3, middleware=[shadow.middleware()])
    else:
        node = shadow.tool_node(ToolNode(TOOLS))
        graph = hand_built(llm, parallel=3, tools_node=node).compile()
    state = await shadow.attach(graph).ainvoke(asked())
    assert await shadow.drain(timeout=60)
    assert_hits(shadow, 2)
    called = [tuple(c["id"] for c in m.tool_calls) for m in state["messages"] if m.type == "ai"]
    assert [row.tool_call_ids for row in shadow.ledger] == [ids for ids in called if ids]


def run_tools(state: MessagesState) -> dict[str, Any]:
    """A tool node of one's own."""
    calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
    return {
        "messages": [ToolMessage(search.invoke(c["args"]), tool_call_id=c["id"]) for c in calls]
    }


async def arun_tools(state: MessagesState) -> dict[str, Any]:
    """The same, asynchronous."""
    return run_tools(state)


def subgraph() -> Any:
    inner = StateGraph(MessagesState)
    inner.add_node("run", ToolNode(TOOLS))
    inner.add_edge(START, "run")
    inner.add_edge("run", END)
    return inner.compile()


@pytest.mark.parametrize(
    "inner",
    [run_tools, arun_tools, RunnableLambda(run_tools, arun_tools), subgraph()],
    ids=["function", "coroutine", "runnable", "subgraph"],
)
async def test_any_tool_node_shows_its_batch(llm: ChatOpenAI, inner: Any) -> None:
    """The graph stops before the model is called again, so only the node can have shown it."""
    shadow = Shadow(llm, guard="reject")
    builder = hand_built(shadow.watch(llm), tools_node=shadow.tool_node(inner))
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_after=["tools"])
    await graph.ainvoke(asked(), thread())
    assert await shadow.drain(timeout=60)
    (row,) = shadow.ledger
    assert row.verdict in ("update", "skip"), row.reason
    assert not row.exact


async def test_a_loop_that_ends_after_its_tools_still_runs_the_branch(llm: ChatOpenAI) -> None:
    shadow = Shadow(llm, deadline=600)
    builder = hand_built(llm, tools_node=shadow.tool_node(ToolNode(TOOLS)))
    graph = shadow.attach(builder.compile(interrupt_after=["tools"], checkpointer=InMemorySaver()))
    await graph.ainvoke(asked(), thread())
    assert await shadow.drain(timeout=60)
    (row,) = shadow.ledger
    assert row.verdict in ("update", "skip"), row.reason
    assert not row.exact
    assert row.late
    assert row.predicted is not None
    assert row.cached is not None
    assert row.cached >= row.predicted > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_interrupt_and_resume_fire_once(llm: ChatOpenAI, mode: str) -> None:
    shadow = Shadow(llm, guard="reject")
    runs: list[str] = []

    def approved(state: MessagesState) -> dict[str, Any]:
        runs.append("tools")
        interrupt("run the tools?")
        return run_tools(state)

    builder = hand_built(llm, batches=1, tools_node=shadow.tool_node(approved))
    graph = shadow.attach(builder.compile(checkpointer=InMemorySaver()))
    config = thread()
    for inputs in (asked(), Command(resume="yes")):
        if mode == "sync":
            graph.invoke(inputs, config)
        else:
            await graph.ainvoke(inputs, config)
    assert await shadow.drain(timeout=60)
    assert runs == ["tools", "tools"]
    assert_hits(shadow, 1)


async def test_a_retried_node_fires_once(llm: ChatOpenAI) -> None:
    shadow = Shadow(llm, guard="reject")
    attempts: list[int] = []
    node = shadow.tool_node(run_tools)

    def flaky(state: MessagesState) -> dict[str, Any]:
        output: dict[str, Any] = node(state)
        attempts.append(1)
        if len(attempts) == 1:
            msg = "the archive was busy"
            raise ConnectionError(msg)
        return output

    builder = hand_built(llm, batches=1)
    builder.nodes.pop("tools")
    builder.add_node("tools", flaky, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False))
    await shadow.attach(builder.compile()).ainvoke(asked())
    assert await shadow.drain(timeout=60)
    assert len(attempts) == 2
    assert_hits(shadow, 1)


async def test_the_node_alone_says_what_is_missing(
    llm: ChatOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    shadow = Shadow(llm)
    builder = hand_built(llm, tools_node=shadow.tool_node(ToolNode(TOOLS)))
    with caplog.at_level(logging.WARNING, "langgraph_shadow"):
        state = await builder.compile().ainvoke(asked())
    assert len(state["messages"]) == 6
    assert len(shadow.ledger) == 0
    (line,) = [r.getMessage() for r in caplog.records if "captured" in r.getMessage()]
    assert "shadow.attach(graph)" in line


async def test_a_node_without_tool_messages_says_so(
    llm: ChatOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    shadow = Shadow(llm)

    def lost(state: MessagesState) -> dict[str, Any]:
        return {"messages": []}

    builder = hand_built(llm, batches=1, tools_node=shadow.tool_node(lost))
    graph = shadow.attach(builder.compile(interrupt_after=["tools"], checkpointer=InMemorySaver()))
    with caplog.at_level(logging.WARNING, "langgraph_shadow"):
        await graph.ainvoke(asked(), thread())
    (line,) = [r.getMessage() for r in caplog.records if "tool messages" in r.getMessage()]
    assert "no branch runs" in line
    assert len(shadow.ledger) == 0


async def test_several_branches_share_one_prompt(llm: ChatOpenAI) -> None:
    """The second and later branches compute their instruction and at most a block."""
    branches = [user_update(), memory_note(), fact_check("Glaciers are growing.")]
    shadow = Shadow(llm, branches=branches, guard="reject")
    await shadow.attach(hand_built(llm).compile()).ainvoke(asked())
    assert await shadow.drain(timeout=60)
    assert len(shadow.ledger) == 6
    block = 32
    for row in shadow.ledger:
        assert row.verdict != "failed" or row.branch == "fact_check", row.reason
        assert hit(row), row
        assert row.prompt_tokens is not None
        assert row.kept is not None
        assert row.cached is not None
        assert row.prompt_tokens - row.cached <= (row.prompt_tokens - row.kept) + block


async def test_events_arrive_by_stream_queue_and_function(llm: ChatOpenAI) -> None:
    called: list[ShadowEvent] = []
    shadow = Shadow(llm, on_event=called.append)
    queued = shadow.events()
    graph = shadow.attach(hand_built(llm, batches=3).compile())
    streamed = [chunk async for chunk in graph.astream(asked(), stream_mode="custom")]
    await shadow.drain(timeout=60)
    await shadow.aclose()
    from_queue = [event async for event in queued]
    assert len(from_queue) == 3
    assert from_queue == called
    in_time = [e.wire() for e in from_queue][: len(streamed)]
    assert streamed == in_time
    assert {e.type for e in from_queue} <= {"shadow.update", "shadow.skip"}


async def test_a_mirror_finds_its_own_previous_branch(llm: ChatOpenAI, vllm_server: Any) -> None:
    """Another address of the same server stands for another server: nothing is shared by name."""
    other = ChatOpenAI(
        base_url=vllm_server.base_url.replace("127.0.0.1", "localhost"),
        model=vllm_server.model,
        api_key="x",
        temperature=0,
        use_responses_api=False,
        extra_body={"cache_salt": str(uuid4())},
    )
    shadow = Shadow(other, guard="reject", warm_up=True)
    graph = shadow.attach(hand_built(llm, batches=3).compile())
    await graph.ainvoke(asked())
    assert await shadow.drain(timeout=60)
    rows = shadow.ledger.rows
    assert [r.mode for r in rows] == ["mirror"] * 3
    assert all(r.predicted == r.cached for r in rows), rows
    assert all(r.cached for r in rows)


class Archive(ToolNode):
    """A tool node of another library's, which looks for its own type."""


async def test_finished_results_are_computed_ahead(llm: ChatOpenAI, vllm_server: Any) -> None:
    release = asyncio.Event()

    async def slow_search(topic: str = "x") -> str:
        """Search slowly."""
        if topic.endswith(".1"):
            await release.wait()
        return search.invoke({"topic": topic})

    tools = [StructuredTool.from_function(coroutine=slow_search, name="search")]
    shadow = Shadow(llm, guard="reject", prefill_ahead=True)
    node = shadow.tool_node(Archive(tools))
    assert type(node) is Archive
    builder = hand_built(llm, batches=1, parallel=2, tools_node=node)
    run = asyncio.create_task(shadow.attach(builder.compile()).ainvoke(asked()))
    before = vllm_server.requests_seen()
    # the model call and the prefill; the server's counter can only be polled
    while vllm_server.requests_seen() < before + 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    release.set()
    await run
    assert await shadow.drain(timeout=60)
    assert_hits(shadow, 1)
