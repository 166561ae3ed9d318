"""A real vLLM that loses its cache, and is then killed in the middle of a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode

from langgraph_shadow import Shadow, user_update
from langgraph_shadow.server.local import LocalServer
from tests.agents import GLACIERS, contents, hand_built

INPUTS = {"messages": [("user", "How fast do alpine glaciers retreat?")]}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server of its own, whose cache can be reset."""
    with LocalServer("tiny", env={"VLLM_SERVER_DEV_MODE": "1"}) as running:
        yield running


@pytest.fixture
def llm(server: LocalServer) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=server.base_url,
        model=server.model,
        api_key="x",
        temperature=0,
        max_tokens=16,
        max_retries=0,
        use_responses_api=False,
    )


def agent(llm: ChatOpenAI, shadow: Shadow | None, hook: Callable[[int], None]) -> Any:
    calls = iter(range(10))

    @tool
    def search(topic: str = "glaciers") -> str:
        """Search the archive for a topic."""
        hook(next(calls))
        return f"{topic}: {GLACIERS * 4}"

    node: Any = ToolNode([search])
    if shadow is None:
        return hand_built(llm, tools_node=node).compile()
    return shadow.attach(hand_built(llm, tools_node=shadow.tool_node(node)).compile())


def test_cache_reset(server: LocalServer, llm: ChatOpenAI) -> None:
    """The cache is emptied before the branch: it hits nothing, and all else is as it was."""

    def reset(call: int) -> None:
        url = f"{server.root_url}/reset_prefix_cache"
        httpx.post(url, trust_env=False).raise_for_status()

    shadow = Shadow(llm, branches=[user_update()])
    shadowed = agent(llm, shadow, reset).invoke(INPUTS, interrupt_after=["tools"])
    assert shadow.drain_sync(timeout=60)
    plain = agent(llm, None, reset).invoke(INPUTS, interrupt_after=["tools"])
    assert contents(shadowed["messages"]) == contents(plain["messages"])
    (row,) = shadow.ledger
    assert row.verdict in ("update", "skip"), row.reason
    assert row.predicted
    assert row.cached == 0
    assert row.as_predicted is False


def test_killed(server: LocalServer, llm: ChatOpenAI, caplog: pytest.LogCaptureFixture) -> None:
    """SIGKILL between two batches: the agent fails with its own error, the branches with rows."""

    def kill(call: int) -> None:
        if call == 1:
            server.kill()

    shadow = Shadow(llm, branches=[user_update()], late="deliver")
    with caplog.at_level(logging.WARNING, "langgraph_shadow"):
        with pytest.raises(openai.APIConnectionError) as shadowed:
            agent(llm, shadow, kill).invoke(INPUTS)
        assert shadow.drain_sync(timeout=60)
        with pytest.raises(openai.APIConnectionError) as plain:
            agent(llm, None, lambda _: None).invoke(INPUTS)
        with pytest.raises(openai.APIConnectionError):
            asyncio.run(agent(llm, shadow, lambda _: None).ainvoke(INPUTS))
    assert (type(shadowed.value), str(shadowed.value)) == (type(plain.value), str(plain.value))
    totals = shadow.ledger.totals
    assert totals.fired == len(shadow.ledger) == 2
    assert totals.failed >= 1
    assert totals.fired == totals.updates + totals.skipped + totals.failed + totals.shed
    last = shadow.ledger.rows[-1]
    assert "could not be reached" in last.reason
    kinds = [(r.name, r.msg) for r in caplog.records if r.name.startswith("langgraph_shadow")]
    assert len(kinds) == len(set(kinds))
