"""Every front door on the real server: a batch fires once, hits as predicted, changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode

from langgraph_shadow import Shadow, user_update
from tests.agents import TOOLS, contents, created, hand_built, hit

BATCHES = 3


def question(thread: str) -> dict[str, Any]:
    """No two threads ask the same: a branch of another run would be in the cache already."""
    return {"messages": [("user", f"How fast do alpine glaciers retreat? ({thread})")]}


Build = Callable[[ChatOpenAI, Shadow | None, Any], Any]


def by_node(llm: ChatOpenAI, shadow: Shadow | None, saver: Any) -> Any:
    """The tool node, which needs the prompt: the model is watched."""
    node = ToolNode(TOOLS)
    if shadow is None:
        return hand_built(llm, batches=BATCHES).compile(checkpointer=saver)
    builder = hand_built(shadow.watch(llm), batches=BATCHES, tools_node=shadow.tool_node(node))
    return builder.compile(checkpointer=saver)


def by_callbacks(llm: ChatOpenAI, shadow: Shadow | None, saver: Any) -> Any:
    graph = hand_built(llm, batches=BATCHES).compile(checkpointer=saver)
    return graph if shadow is None else shadow.attach(graph)


def by_middleware(llm: ChatOpenAI, shadow: Shadow | None, saver: Any) -> Any:
    middleware = [] if shadow is None else [shadow.middleware()]
    return created(llm, batches=BATCHES, middleware=middleware, checkpointer=saver)


def by_all(llm: ChatOpenAI, shadow: Shadow | None, saver: Any) -> Any:
    graph = by_middleware(llm, shadow, saver)
    return graph if shadow is None else shadow.attach(graph)


def by_all_hand_built(llm: ChatOpenAI, shadow: Shadow | None, saver: Any) -> Any:
    graph = by_node(llm, shadow, saver)
    return graph if shadow is None else shadow.attach(graph)


DOORS = [by_node, by_callbacks, by_middleware, by_all, by_all_hand_built]


async def run_async(graph: Any, thread: str) -> None:
    config = {"configurable": {"thread_id": thread}}
    await graph.ainvoke(question(thread), config)


async def run_streamed(graph: Any, thread: str) -> None:
    config = {"configurable": {"thread_id": thread}}
    async for _ in graph.astream(question(thread), config, stream_mode=["messages", "custom"]):
        pass


async def run_sync(graph: Any, thread: str) -> None:
    graph.invoke(question(thread), {"configurable": {"thread_id": thread}})


@pytest.mark.parametrize("run", [run_async, run_streamed, run_sync])
@pytest.mark.parametrize("build", DOORS)
async def test_each_batch_fires_once_and_hits(
    llm: ChatOpenAI, build: Build, run: Callable[[Any, str], Awaitable[None]]
) -> None:
    shadow = Shadow(llm, branches=[user_update()], guard="reject")
    saver = InMemorySaver()
    graph = build(llm, shadow, saver)
    thread = str(uuid4())
    await run(graph, thread)
    assert await shadow.drain(timeout=60)

    assert len(shadow.ledger) == BATCHES
    for row in shadow.ledger:
        assert row.mode == "shared"
        assert row.verdict in ("update", "skip"), row.reason
        assert hit(row), row
        assert row.cached is not None
        assert row.cached > 0
    assert len({row.tool_call_ids for row in shadow.ledger}) == BATCHES
    assert shadow.ledger.guard == ()

    plain = build(llm, None, InMemorySaver())
    await run(plain, thread)
    config = {"configurable": {"thread_id": thread}}
    with_shadow, without = graph.get_state(config), plain.get_state(config)
    assert contents(with_shadow.values["messages"]) == contents(without.values["messages"])
    assert with_shadow.next == without.next == ()
    history = list(graph.get_state_history(config))
    assert len(history) == len(list(plain.get_state_history(config)))


@pytest.mark.parametrize("build", DOORS)
async def test_a_run_without_a_thread_id_is_one_history(
    llm: ChatOpenAI, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    shadow = Shadow(llm, branches=[user_update()], guard="reject")
    await build(llm, shadow, None).ainvoke(question(str(uuid4())))
    assert await shadow.drain(timeout=60)

    assert len(shadow.ledger) == BATCHES
    assert len({row.thread for row in shadow.ledger}) == 1
    assert all(map(hit, shadow.ledger))
    assert len(shadow.ledger.calls) == BATCHES + 1
    assert len({call.thread for call in shadow.ledger.calls}) == 1
    assert caplog.messages == []
