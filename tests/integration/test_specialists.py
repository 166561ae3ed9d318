"""Specialists on the real server: a chain over one cache, and calls that cannot be made."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import httpx2
import pytest
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from openai import DefaultAsyncHttpxClient
from pydantic import Field

from langgraph_shadow import Shadow
from langgraph_shadow.bench.specialists import run as run_bench
from langgraph_shadow.bench.target import Target
from langgraph_shadow.specialists import (
    SpecialistError,
    ToolNotAllowedError,
    declare,
    ledger_of,
    specialist,
)
from tests.agents import GLACIERS
from tests.conftest import VllmServer

BLOCK = 32
SYSTEM = "You are a team that knows all about ice. " * 4
ROLES = {
    "researcher": "You are the researcher. Look it up, then say what you found.",
    "critic": "You are the critic. Name the weakest claim above.",
    "writer": "You are the writer. Write one clear paragraph from it.",
}
ZOO = Path(__file__).parents[1] / "unit" / "template_zoo"
Short = Annotated[str, Field(max_length=16, pattern="[a-z ]{3,16}")]


@tool
def search(topic: Short) -> str:
    """Search the archive for a topic."""
    return f"{topic}: {GLACIERS * 4}"


@tool
def publish(title: Short) -> str:
    """Publish the paragraph."""
    published.append(title)
    return "published"


published: list[str] = []
TOOLS: list[BaseTool] = [search, publish]


def model(server: VllmServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=server.base_url,
        model=server.model,
        api_key="x",
        temperature=0,
        stream_usage=True,
        use_responses_api=False,
        http_async_client=DefaultAsyncHttpxClient(),
        **{"max_tokens": 48, **options},
    )


def team(shadow: Shadow, *, tools: bool = True) -> StateGraph[Any]:
    """Researcher, critic, writer; the researcher searches once, the writer could publish."""
    declare(shadow, system=SYSTEM, tools=TOOLS if tools else [])
    own: dict[str, Any] = {
        "researcher": {"tools": [search], "must_call": True, "max_calls": 1},
        "writer": {"tools": [publish]},
    }
    builder = StateGraph(MessagesState)
    before = START
    for name, role in ROLES.items():
        options = own.get(name, {}) if tools else {}
        builder.add_node(name, specialist(shadow, name=name, role=role, **options))
        builder.add_edge(before, name)
        before = name
    return builder


@pytest.fixture
def target(vllm_server: VllmServer) -> Target:
    return Target.at(vllm_server.base_url)


def asked() -> dict[str, Any]:
    return {"messages": [("user", f"How fast do alpine glaciers retreat? ({uuid4()})")]}


def thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": str(uuid4())}}


def ids(server: VllmServer, text: str) -> list[int]:
    """Token ids of a bare text."""
    body = {"model": server.model, "prompt": text, "add_special_tokens": False}
    answer = httpx2.post(f"{server.root_url}/tokenize", json=body, trust_env=False).json()
    return list(answer["tokens"])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_chain_over_one_cache(vllm_server: VllmServer, mode: str) -> None:
    shadow = Shadow(model(vllm_server), branches=[], guard="reject")
    graph = shadow.attach(team(shadow).compile())
    given, config = asked(), thread()
    if mode == "sync":
        state = graph.invoke(given, config)
    else:
        state = asyncio.run(graph.ainvoke(given, config))

    assert [(m.type, m.name) for m in state["messages"]] == [
        ("human", None),
        ("ai", "researcher"),
        ("tool", "search"),
        ("ai", "researcher"),
        ("ai", "critic"),
        ("ai", "writer"),
    ]
    assert not any(role in str(state) for role in ROLES.values())
    assert "team that knows" not in str(state)
    assert [call["name"] for call in state["messages"][1].tool_calls] == ["search"]

    rows = ledger_of(shadow).rows
    assert [(r.specialist, r.called) for r in rows] == [
        ("researcher", "search"),
        ("researcher", ""),
        ("critic", ""),
        ("writer", ""),
    ]
    for before, row in pairwise(rows):
        assert row.predicted == row.cached
        assert row.cached > before.trunk_tokens - BLOCK
        role = row.prompt_tokens - row.trunk_tokens
        new = row.trunk_tokens - before.trunk_tokens
        assert row.computed < role + new + BLOCK
        assert role <= len(ids(vllm_server, ROLES[row.specialist])) + 20  # the markers of two turns
    answers = [m for m in state["messages"] if isinstance(m, AIMessage) and not m.tool_calls]
    for answer, (before, row) in zip(answers, pairwise(rows[1:]), strict=False):
        assert row.trunk_tokens - before.trunk_tokens <= answer.usage_metadata["output_tokens"] + 20


async def test_role_first_computes_everything_again(target: Target) -> None:
    report = await run_bench(target, agents=(3,), contexts=(600,), threads=(1, 2), repeats=1)
    assert [row["arm"] for row in report.rows] == ["role first", "role last"] * 2
    for first, last in (report.rows[:2], report.rows[2:]):
        assert first["hop_computed"] > 600
        assert last["hop_computed"] < 48 + 40 + 2 * BLOCK
        assert last["computed_ratio"] < 0.6
        assert last["mispredicted"] == 0
        assert first["mispredicted"] is None
        for arm in (first, last):  # read 20 times a second: of so fast a model it sees too little
            assert 0 <= arm["kv_peak_at_once"] < 100
        assert last["ttft_ms"] > 0


async def test_roles_side_by_side_share_one_trunk(vllm_server: VllmServer) -> None:
    """Behind a first hop, which computes the trunk; which of the others is first is a race."""
    shadow = Shadow(model(vllm_server), branches=[], guard="reject")
    first, *others = ROLES
    builder = StateGraph(MessagesState)
    for name, role in ROLES.items():
        builder.add_node(name, specialist(shadow, name=name, role=role))
    builder.add_edge(START, first)
    for name in others:
        builder.add_edge(first, name)
    question = {"messages": [("user", f"({uuid4()}) {GLACIERS * 6}")]}
    state = await shadow.attach(builder.compile()).ainvoke(question, thread())
    assert {m.name for m in state["messages"][1:]} == set(ROLES)
    leader, *rest = ledger_of(shadow).rows
    assert leader.computed > 300
    assert len(rest) == len(others)
    assert all(row.computed < leader.computed / 2 for row in rest)


async def test_a_thread_is_taken_up_again(vllm_server: VllmServer) -> None:
    shadow = Shadow(model(vllm_server), branches=[], guard="reject")
    graph = shadow.attach(team(shadow).compile(checkpointer=InMemorySaver()))
    config = thread()
    await graph.ainvoke(asked(), config)
    state = await graph.ainvoke({"messages": [("user", "And since 2000?")]}, config)
    rows = ledger_of(shadow).rows
    assert len(rows) == 8
    assert all(row.predicted == row.cached for row in rows[1:])
    assert [m.type for m in state["messages"]].count("human") == 2
    assert shadow.ledger.guard == ()


async def test_an_orchestrator_goes_first(vllm_server: VllmServer, llm: ChatOpenAI) -> None:
    """Its prompt and its answer are in the cache; the specialist's trunk extends both."""
    shadow = Shadow(llm, branches=[], guard="reject")
    head = declare(shadow, system=SYSTEM, tools=TOOLS)
    bound = shadow.watch(llm).bind_tools(head.tools, tool_choice="none")

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke([SystemMessage(head.system), *state["messages"]])]}

    builder = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    before = "agent"
    for name in ("critic", "writer"):
        builder.add_node(name, specialist(shadow, name=name, role=ROLES[name]))
        builder.add_edge(before, name)
        before = name
    for _ in range(4):
        await shadow.attach(builder.compile()).ainvoke(asked(), thread())
    rows = ledger_of(shadow).rows
    assert len(rows) == 8
    assert all(row.predicted == row.cached for row in rows), ledger_of(shadow)


@pytest.mark.parametrize("name", ["plain", "silent_user", "reasoning_gate", "last_thinking"])
async def test_other_templates(vllm_server: VllmServer, name: str) -> None:
    """Where a user turn does not keep the trunk, another carrier does, on one cache still."""
    template = (ZOO / f"{name}.jinja").read_text()
    llm = model(vllm_server, extra_body={"chat_template": template})
    shadow = Shadow(llm, branches=[], guard="reject")
    graph = shadow.attach(team(shadow, tools=False).compile())
    await graph.ainvoke({"messages": [("user", f"({uuid4()}) {GLACIERS}")]}, thread())
    rows = ledger_of(shadow).rows
    assert [row.specialist for row in rows] == list(ROLES)
    assert all(row.predicted == row.cached for row in rows[1:]), ledger_of(shadow)
    for before, row in pairwise(rows):
        assert row.cached > before.trunk_tokens - BLOCK


async def test_a_template_that_takes_no_two_answers_in_a_row_is_named(
    vllm_server: VllmServer,
) -> None:
    template = (ZOO / "raises.jinja").read_text()
    llm = model(vllm_server, extra_body={"chat_template": template})
    shadow = Shadow(llm, branches=[], guard="reject")
    graph = shadow.attach(team(shadow, tools=False).compile())
    with pytest.raises(SpecialistError, match="template"):
        await graph.ainvoke(asked(), thread())


async def test_a_call_of_anothers_tool_is_never_run(vllm_server: VllmServer) -> None:
    """Even where the model was made to write one: its own constraint takes the place of ours."""
    call = json.dumps({"name": "publish", "arguments": {"title": "ice"}})
    forced = {"structured_outputs": {"choice": [f"<tool_call>\n{call}\n</tool_call>"]}}
    shadow = Shadow(model(vllm_server, extra_body=forced), branches=[])
    graph = shadow.attach(team(shadow).compile())
    published.clear()
    with pytest.raises(ToolNotAllowedError) as caught:
        await graph.ainvoke(asked(), thread())
    assert (caught.value.specialist, caught.value.tool) == ("researcher", "publish")
    assert published == []


async def test_a_call_of_anothers_tool_cannot_be_decoded(vllm_server: VllmServer) -> None:
    """Pushed towards its first letters by `logit_bias`, the model still calls its own tool."""
    bias = {str(i): 100 for i in ids(vllm_server, "publish")[:1]}
    llm = model(vllm_server, logit_bias=bias)
    open_choice = await llm.ainvoke("Hello.")
    assert "publish"[:3] in str(open_choice.content)
    shadow = Shadow(llm, branches=[])
    declare(shadow, tools=TOOLS)
    node = specialist(
        shadow, name="researcher", role="Go on.", tools=[search], must_call=True, max_tokens=64
    )
    builder = StateGraph(MessagesState).add_node("researcher", node).add_edge(START, "researcher")
    await shadow.attach(builder.compile()).ainvoke(asked(), thread())
    assert ledger_of(shadow).rows[0].called == "search"
