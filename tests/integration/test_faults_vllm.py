"""Faults that the real server can be brought to: the run is what it would have been."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode
from openai import DefaultAsyncHttpxClient

from langgraph_shadow import Branch, Shadow, user_update
from tests.agents import TOOLS, contents, hand_built, hit
from tests.conftest import VllmServer

BATCHES = 2
Mode = Literal["sync", "async"]


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    made: Mode = request.param
    return made


def agent(llm: ChatOpenAI, shadow: Shadow | None) -> Any:
    if shadow is None:
        return hand_built(llm, batches=BATCHES).compile()
    node = shadow.tool_node(ToolNode(TOOLS))
    return shadow.attach(hand_built(llm, batches=BATCHES, tools_node=node).compile())


async def run(mode: Mode, graph: Any, question: str) -> list[Any]:
    inputs = {"messages": [("user", question)]}
    state = graph.invoke(inputs) if mode == "sync" else await graph.ainvoke(inputs)
    return contents(state["messages"])


async def with_and_without(mode: Mode, llm: ChatOpenAI, shadow: Shadow, fired: int) -> None:
    question = f"How fast do glaciers retreat? ({time.time_ns()})"
    shadowed = await run(mode, agent(llm, shadow), question)
    assert await shadow.drain(timeout=60)
    assert shadowed == await run(mode, agent(llm, None), question)
    totals = shadow.ledger.totals
    assert totals.fired == len(shadow.ledger) == fired
    assert totals.fired == totals.updates + totals.skipped + totals.failed + totals.shed


async def test_context_length_exceeded(mode: Mode, llm: ChatOpenAI) -> None:
    """One branch does not fit into the model's 8192 tokens; the one beside it does."""
    instruction = "Answer each of these. " + " ".join(f"{i}?" for i in range(3000))
    long = Branch(name="long", instruction=instruction, skip_word=None)
    shadow = Shadow(llm, branches=[long, user_update()], max_new_tokens=100_000, late="deliver")
    await with_and_without(mode, llm, shadow, 2 * BATCHES)
    for row in shadow.ledger:
        if row.branch == "long":
            assert row.verdict == "failed"
            assert "8192" in row.reason
        else:
            assert row.verdict in ("update", "skip"), row.reason
            assert hit(row), row


async def test_unknown_model(mode: Mode, llm: ChatOpenAI, vllm_server: VllmServer) -> None:
    other = ChatOpenAI(
        base_url=vllm_server.base_url,
        model="not-served",
        api_key="x",
        use_responses_api=False,
        http_async_client=DefaultAsyncHttpxClient(),
    )
    shadow = Shadow(other, late="deliver")
    await with_and_without(mode, llm, shadow, BATCHES)
    for row in shadow.ledger:
        assert (row.mode, row.verdict) == ("mirror", "failed")
        assert "not-served" in row.reason


async def test_out_of_time(mode: Mode, llm: ChatOpenAI, vllm_server: VllmServer) -> None:
    """A branch that takes too long is cut off, and the server stops computing for it."""
    branch = Branch(
        name="long", instruction="Tell everything you know.", skip_word=None, max_tokens=4000
    )
    shadow = Shadow(llm, branches=[branch], timeout=0.05, late="deliver")
    await with_and_without(mode, llm, shadow, BATCHES)
    assert {row.verdict for row in shadow.ledger} == {"failed"}
    await becomes_idle(vllm_server)


async def becomes_idle(server: VllmServer) -> None:
    async with asyncio.timeout(30):
        while (await asyncio.to_thread(server.metrics)).num_requests_running:
            pass


def test_loop_ends_first(vllm_server: VllmServer) -> None:
    """`asyncio.run` ends with branches in flight: they are shed, aborted, and nothing is lost."""
    branch = Branch(
        name="long", instruction="Tell everything you know.", skip_word=None, max_tokens=4000
    )

    async def main() -> None:
        async with DefaultAsyncHttpxClient() as client:
            llm = model(vllm_server, http_async_client=client)
            await agent(llm, shadow).ainvoke(
                {"messages": [("user", f"Glaciers? {time.time_ns()}")]}
            )

    shadow = Shadow(model(vllm_server), branches=[branch], launch="lead", late="deliver")
    for _ in range(2):
        asyncio.run(main())
    totals = shadow.ledger.totals
    assert totals.fired == len(shadow.ledger) == 2 * BATCHES
    assert totals.fired == totals.updates + totals.skipped + totals.failed + totals.shed
    asyncio.run(becomes_idle(vllm_server))


def model(server: VllmServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=server.base_url,
        model=server.model,
        api_key="x",
        temperature=0,
        max_tokens=16,
        use_responses_api=False,
        **options,
    )
