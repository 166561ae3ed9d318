"""Nothing of ours blocks the event loop: `langgraph dev` treats that as an error."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest
from blockbuster import BlockingError, blockbuster_ctx
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode

from langgraph_shadow import PrefixMutationError, Shadow
from tests.agents import TOOLS, created, hand_built
from tests.integration.test_guard_on_server import ticking


def asked() -> dict[str, Any]:
    return {"messages": [("user", f"How fast do alpine glaciers retreat? ({uuid4()})")]}


@pytest.mark.parametrize("guard", ["warn", "repair"])
@pytest.mark.parametrize("kind", ["hand-built", "created"])
async def test_an_async_run_with_branches_never_blocks(
    llm: ChatOpenAI, guard: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    shadow = Shadow(llm, guard=guard)
    if kind == "created":
        graph = created(llm, middleware=[shadow.middleware()], checkpointer=InMemorySaver())
    else:
        node = shadow.tool_node(ToolNode(TOOLS))
        builder = hand_built(llm, tools_node=node, system=ticking())
        graph = shadow.attach(builder.compile(checkpointer=InMemorySaver()))
    config = {"configurable": {"thread_id": str(uuid4())}}
    with blockbuster_ctx():
        async for _ in graph.astream(asked(), config, stream_mode=["messages", "custom"]):
            pass
        assert await shadow.drain(timeout=60)
    assert len(shadow.ledger) == 2
    assert {row.verdict for row in shadow.ledger} <= {"update", "skip"}
    # an error of ours never reaches the graph, so it would only show in the log
    ours = [r for r in caplog.records if r.name.startswith("langgraph_shadow")]
    assert [r for r in ours if "Blocking" in r.getMessage()] == []


async def test_a_veto_is_decided_without_blocking(llm: ChatOpenAI) -> None:
    shadow = Shadow(llm, guard="reject")
    graph = shadow.attach(hand_built(llm, system=ticking()).compile())
    with blockbuster_ctx(), pytest.raises(PrefixMutationError):
        await graph.ainvoke(asked())


async def test_the_check_itself_works() -> None:
    with blockbuster_ctx(), pytest.raises(BlockingError):
        time.sleep(0)  # noqa: ASYNC251 - that it is found is the point
