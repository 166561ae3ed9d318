"""`guard="repair"`: what would break the prefix is mended on the wire, and never silently."""

from __future__ import annotations

import itertools
import json
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from langgraph_shadow import Shadow
from tests.agents import SYSTEM, TOOLS, contents, created, hand_built, hit
from tests.integration.test_guard_on_server import ticking


def asked() -> dict[str, Any]:
    return {"messages": [("user", f"How fast do alpine glaciers retreat? ({uuid4()})")]}


class Clock(AgentMiddleware[Any, Any]):
    """Puts the time into the system prompt of every call, as a dynamic prompt does."""

    def __init__(self) -> None:
        super().__init__()
        self.time = ticking()

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(system_message=SystemMessage(self.time())))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(system_message=SystemMessage(self.time())))


def stabilised(llm: ChatOpenAI, shadow: Shadow) -> Any:
    return hand_built(shadow.stabilise(llm), batches=3, system=ticking()).compile()


def by_middleware(llm: ChatOpenAI, shadow: Shadow) -> Any:
    return created(llm, batches=3, middleware=[Clock(), shadow.middleware()])


@pytest.mark.parametrize("build", [stabilised, by_middleware])
@pytest.mark.parametrize("mode", ["sync", "async", "streamed"])
async def test_a_clock_is_frozen_and_the_orchestrator_keeps_its_prefix(
    llm: ChatOpenAI, build: Any, mode: str
) -> None:
    shadow = Shadow(llm, guard="repair")
    graph = build(llm, shadow)
    config = {"configurable": {"thread_id": str(uuid4())}}
    if mode == "sync":
        state = graph.invoke(asked(), config)
    elif mode == "async":
        state = await graph.ainvoke(asked(), config)
    else:
        stream = graph.astream(asked(), config, stream_mode="values")
        state = [state async for state in stream][-1]
    assert await shadow.drain(timeout=60)

    assert {row.kind for row in shadow.ledger.guard} == {"clock"}
    assert all("repaired" in row.message for row in shadow.ledger.guard)
    assert len(shadow.ledger) == 3
    assert all(map(hit, shadow.ledger)), shadow.ledger.rows
    # every later call of the orchestrator itself finds the call before it in the cache
    used = [m.usage_metadata for m in state["messages"] if m.type == "ai"]
    for before, after in itertools.pairwise(used):
        kept = after["input_token_details"]["cache_read"]
        assert kept >= (before["input_tokens"] - 1) // 32 * 32
    # the state holds what the graph made of it, without the repair
    assert all("now:" not in str(content) for _, content, _ in contents(state["messages"]))


async def test_without_repair_the_same_agent_loses_its_prefix(llm: ChatOpenAI) -> None:
    shadow = Shadow(llm, guard="observe")
    graph = shadow.attach(hand_built(llm, system=ticking()).compile())
    state = await graph.ainvoke(asked())
    await shadow.drain(timeout=60)
    used = [m.usage_metadata for m in state["messages"] if m.type == "ai"]
    assert used[-1]["input_token_details"]["cache_read"] < used[0]["input_tokens"]


def test_a_stabilised_model_is_what_it_was(llm: ChatOpenAI) -> None:
    shadow = Shadow(llm, guard="repair")
    model = shadow.stabilise(llm)
    assert isinstance(model, type(llm))
    assert type(model).__name__ == type(llm).__name__
    assert type(llm) is ChatOpenAI
    assert shadow.stabilise(model) is model or isinstance(shadow.stabilise(model), ChatOpenAI)
    with pytest.raises(ValueError, match="guard='repair'"):
        Shadow(llm).stabilise(llm)


@pytest.mark.parametrize("streamed", [False, True])
async def test_arguments_are_replayed_in_the_models_own_text(
    llm: ChatOpenAI, streamed: bool
) -> None:
    """langchain-openai parses them and writes them anew (facts/langgraph.md §4)."""
    sent: list[dict[str, Any]] = []

    async def record(request: httpx2.Request) -> None:
        sent.append(json.loads(request.content))

    shadow = Shadow(llm, guard="repair")
    recorded = ChatOpenAI(
        base_url=llm.openai_api_base,
        model=llm.model_name,
        api_key="x",
        temperature=0,
        max_tokens=100,
        streaming=streamed,
        use_responses_api=False,
        http_async_client=httpx2.AsyncClient(event_hooks={"request": [record]}),
    )
    model = shadow.stabilise(recorded)
    call = '{"name": "search", "arguments": {"topic": "caf\\u00e9",   "n": 1e3}}'
    forced = {"structured_outputs": {"choice": [f"<tool_call>\n{call}\n</tool_call>"]}}
    config = {"metadata": {"thread_id": str(uuid4())}}
    history = [SystemMessage(SYSTEM), HumanMessage(f"Which topic? ({uuid4()})")]
    answer = await model.bind_tools(TOOLS, extra_body=forced).ainvoke(history, config)
    assert answer.tool_calls[0]["args"] == {"topic": "café", "n": 1000.0}

    history += [answer, ToolMessage("none", tool_call_id=answer.tool_calls[0]["id"])]
    await model.bind_tools(TOOLS).ainvoke(history, config)
    (replayed,) = [m["tool_calls"] for m in sent[-1]["messages"] if m.get("tool_calls")]
    rewritten = json.dumps(answer.tool_calls[0]["args"], ensure_ascii=False)
    written = replayed[0]["function"]["arguments"]
    assert json.loads(written) == answer.tool_calls[0]["args"]
    if streamed:  # the server streams the model's own text; in one piece it parses it itself
        assert written == '{"topic": "caf\\u00e9",   "n": 1e3}'
        assert written != rewritten
