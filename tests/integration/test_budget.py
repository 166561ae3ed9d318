"""The budget on the real server: what it accepts, and that a cancelled branch is aborted there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from langgraph.prebuilt import ToolNode

from langgraph_shadow import Branch, Shadow
from langgraph_shadow.runner import batch
from tests.agents import TOOLS, hand_built, hit

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

    from tests.conftest import VllmServer

# The random model writes no full stop, so a branch without a short limit generates for long.
ENDLESS = Branch(name="endless", instruction="Tell everything.", skip_word=None, max_tokens=4000)


async def run(llm: ChatOpenAI, shadow: Shadow) -> None:
    node = shadow.tool_node(ToolNode(TOOLS))
    graph = shadow.attach(hand_built(llm, batches=1, tools_node=node).compile())
    await graph.ainvoke({"messages": [("user", f"How fast do glaciers retreat? ({uuid4()})")]})


async def test_a_branch_that_the_answer_overtakes_is_aborted(
    llm: ChatOpenAI, vllm_server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "GRACE_S", 0.0)
    shadow = Shadow(llm, branches=[ENDLESS], launch="lead")
    await run(llm, shadow)
    active = [asyncio.wrap_future(f) for f in shadow._runner._underway.futures()]
    await asyncio.wait(active, timeout=60)
    [row] = shadow.ledger
    assert (row.verdict, row.reason) == ("shed", "the answer came first")
    async with asyncio.timeout(30):  # it would generate for longer, were it not aborted
        while vllm_server.metrics().num_requests_running:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("priority", ["auto", 5, None])
async def test_a_priority_is_accepted(llm: ChatOpenAI, priority: int | str | None) -> None:
    shadow = Shadow(llm, priority=priority)
    await run(llm, shadow)
    assert await shadow.drain(timeout=60)
    [row] = shadow.ledger
    assert row.verdict in ("update", "skip"), row.reason
    assert hit(row), row
