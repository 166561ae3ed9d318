"""A specialist in a graph: what it is sent, what it writes, what it may call, what it raises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Command, interrupt

from langgraph_shadow import Affinity, Shadow, ShadowError, user_update
from langgraph_shadow.specialists import (
    SpecialistError,
    ToolNotAllowedError,
    declare,
    ledger_of,
    specialist,
)
from tests.agents import contents
from tests.faults.server import BLOCK_SIZE
from tests.routers import HashRouter
from tests.unit.specialists.desk import ROLES, Desk, Toolbox, role_of, written

QUESTION = {"messages": [("user", "How fast do glaciers retreat? " * 4)]}
SYSTEM = "You are a team. " * 8
ANSWERS = {"finder": "By a metre a year.", "critic": "That is one source only."}

Run = Callable[..., Any]


def invoke(graph: Any, given: Any, config: Any = None) -> Any:
    return graph.invoke(given, config)


def ainvoke(graph: Any, given: Any, config: Any = None) -> Any:
    return asyncio.run(graph.ainvoke(given, config))


@pytest.fixture(params=[invoke, ainvoke], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param


def says(body: Mapping[str, Any]) -> str:
    """The finder searches once, then all answer."""
    searched = any(m["role"] == "tool" for m in body["messages"])
    name = role_of(body)
    if name == "finder" and body.get("tools") and not searched:
        return f"Let me see. {written('search', topic='ice')}"
    return ANSWERS[name]


def chain(shadow: Shadow, box: Toolbox | None = None, **options: Any) -> StateGraph[Any]:
    declare(shadow, system=SYSTEM, tools=[box.search, box.publish] if box else [])
    own = {"finder": [box.search]} if box else {}
    builder = StateGraph(MessagesState)
    before = START
    for name, role in ROLES.items():
        node = specialist(shadow, name=name, role=role, tools=own.get(name, ()), **options)
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder


def test_the_state_holds_what_was_said_in_the_order_in_which_it_was_said(run: Run) -> None:
    box = Toolbox()
    with Desk(says) as desk:
        state = run(chain(desk.shadow(), box).compile(), QUESTION)
    assert contents(state["messages"]) == [
        ("human", QUESTION["messages"][0][1], []),
        ("ai", "Let me see.", ["search"]),
        ("tool", "ice: all about it.", []),
        ("ai", ANSWERS["finder"], []),
        ("ai", ANSWERS["critic"], []),
    ]
    names = [m.name for m in state["messages"] if m.type == "ai"]
    assert names == ["finder", "finder", "critic"]
    assert box.ran == ["search"]
    assert not any(role in str(state) for role in (*ROLES.values(), SYSTEM))


def test_each_prompt_is_the_trunk_with_the_role_behind_it(run: Run) -> None:
    with Desk(says) as desk:
        run(chain(desk.shadow(), Toolbox()).compile(), QUESTION)
    heads = [[m["role"] for m in body["messages"]] for body in desk.bodies]
    assert heads == [
        ["system", "user", "user"],
        ["system", "user", "assistant", "tool", "user"],
        ["system", "user", "assistant", "tool", "assistant", "user"],
    ]
    trunks = [body["messages"][:-1] for body in desk.bodies]
    assert all(a == b[: len(a)] for a, b in pairwise(trunks))
    assert len({str(body["tools"]) for body in desk.bodies}) == 1
    assert {body["tool_choice"] for body in desk.bodies} == {"none"}
    last = [body["messages"][-1]["content"] for body in desk.bodies]
    assert last == [ROLES["finder"], ROLES["finder"], ROLES["critic"]]


def test_the_ledger_shows_a_chain_over_one_cache(run: Run) -> None:
    with Desk(says) as desk:
        shadow = desk.shadow()
        run(shadow.attach(chain(shadow, Toolbox()).compile()), QUESTION)
    rows = ledger_of(shadow).rows
    assert [(r.specialist, r.turn, r.called) for r in rows] == [
        ("finder", 0, "search"),
        ("finder", 1, ""),
        ("critic", 0, ""),
    ]
    assert rows[0].predicted is None  # nothing is known of what others sent
    assert all(row.predicted == row.cached > 0 for row in rows[1:])
    for before, row in pairwise(rows):
        new = row.prompt_tokens - before.trunk_tokens
        assert row.computed <= new + BLOCK_SIZE
    assert "predicted = cached on 2 of 2 hops" in str(ledger_of(shadow))
    assert "<table>" in ledger_of(shadow)._repr_html_()


@pytest.mark.parametrize("asked", ["publish", "delete_everything"])
def test_it_cannot_call_what_is_not_its_own(run: Run, asked: str) -> None:
    box = Toolbox()
    with Desk(lambda _: written(asked, text="x", topic="x")) as desk:
        shadow = desk.shadow()
        with pytest.raises(ToolNotAllowedError, match=asked) as caught:
            run(chain(shadow, box).compile(), QUESTION)
    assert box.ran == []
    assert (caught.value.specialist, caught.value.tool) == ("finder", asked)
    assert caught.value.own == ("search",)
    assert isinstance(caught.value, ShadowError)


def test_without_tools_it_cannot_call_any(run: Run) -> None:
    box = Toolbox()
    call = written("search", topic="x")
    with Desk(lambda body: call if role_of(body) == "critic" else "Ice.") as desk:
        graph = chain(desk.shadow(), box).compile()
        with pytest.raises(ToolNotAllowedError, match="it has no tools"):
            run(graph, QUESTION)
    assert box.ran == []


def test_every_request_says_which_calls_can_be_decoded(run: Run) -> None:
    with Desk(says) as desk:
        run(chain(desk.shadow(), Toolbox()).compile(), QUESTION)
    tags = [body["structured_outputs"]["structural_tag"] for body in desk.bodies]
    assert ["search" in tag for tag in tags] == [True, True, False]
    assert not any("publish" in tag for tag in tags)
    assert '"excludes": ["<tool_call>"]' in tags[2]


def test_a_call_that_was_cut_off_is_no_answer(run: Run) -> None:
    with Desk(lambda _: written("search", topic="ice")[:40]) as desk:
        graph = chain(desk.shadow(), Toolbox()).compile()
        with pytest.raises(SpecialistError, match="cut off or garbled") as caught:
            run(graph, QUESTION)
    assert "max_tokens" in caught.value.remedy


def test_after_so_many_calls_it_has_to_answer(run: Run) -> None:
    def restless(body: Mapping[str, Any]) -> str:
        may = "tags" in body["structured_outputs"]["structural_tag"]
        return written("search", topic="ice") if may else "Enough."

    box = Toolbox()
    with Desk(restless) as desk:
        state = run(chain(desk.shadow(), box, max_calls=2).compile(), QUESTION)
    assert box.ran == ["search", "search"]
    assert [m.text for m in state["messages"] if m.type == "ai"][-2:] == ["Enough.", "Enough."]


def test_it_can_be_made_to_call_first(run: Run) -> None:
    box = Toolbox()
    with Desk(says) as desk:
        shadow = desk.shadow()
        node = specialist(
            shadow, name="finder", role=ROLES["finder"], tools=[box.search], must_call=True
        )
        builder = StateGraph(MessagesState).add_node("finder", node).add_edge(START, "finder")
        run(builder.compile(), QUESTION)
    first, second = (body["structured_outputs"]["structural_tag"] for body in desk.bodies)
    assert '"type": "or"' in first
    assert "triggered_tags" in second


def test_a_failing_server_is_raised_with_what_to_do(run: Run) -> None:
    with Desk(lambda _: 400) as desk:
        graph = chain(desk.shadow()).compile()
        with pytest.raises(SpecialistError, match=r"answered 400: .*not today"):
            run(graph, QUESTION)
    with pytest.raises(SpecialistError, match="could not be reached"):
        run(chain(desk.shadow()).compile(), QUESTION)


def test_an_endless_answer_is_not_cut_in_silence(run: Run) -> None:
    with Desk(lambda _: "Ice is cold. " * 2000) as desk:
        graph = chain(desk.shadow()).compile()
        with pytest.raises(SpecialistError, match="did not end within 2"):
            run(graph, QUESTION)


class Notes(TypedDict):
    messages: Annotated[list[Any], add_messages]
    note: str


def one(shadow: Shadow, state: type[Any], **options: Any) -> StateGraph[Any]:
    builder = StateGraph(state)
    builder.add_node("critic", specialist(shadow, name="critic", role=ROLES["critic"], **options))
    builder.add_edge(START, "critic")
    return builder


def test_an_answer_for_another_key_leaves_the_messages_alone(run: Run) -> None:
    with Desk(says) as desk:
        state = run(one(desk.shadow(), Notes, writes="note").compile(), QUESTION)
    assert state["note"] == ANSWERS["critic"]
    assert [m.type for m in state["messages"]] == ["human"]


def test_a_command_is_followed_and_the_answer_appended(run: Run) -> None:
    with Desk(says) as desk:
        command = Command(goto="last", update={"note": "handed over"})
        builder = one(desk.shadow(), Notes, writes=command)
        builder.add_node("last", lambda _: {"messages": [AIMessage("Done.")]})
        state = run(builder.compile(), QUESTION)
    assert [m.text for m in state["messages"][1:]] == [ANSWERS["critic"], "Done."]
    assert state["note"] == "handed over"


def test_a_function_decides_by_the_answer(run: Run) -> None:
    def decide(made: list[Any], state: Any) -> Any:
        assert len(state["messages"]) == 1
        where = END if "one source" in made[-1].text else "nowhere"
        return Command(goto=where, update={"note": made[-1].name})

    with Desk(says) as desk:
        state = run(one(desk.shadow(), Notes, writes=decide).compile(), QUESTION)
    assert state["note"] == "critic"
    assert len(state["messages"]) == 1


def test_a_tool_may_hand_over(run: Run) -> None:
    @tool
    def hand_over(why: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over to the writer."""
        done = ToolMessage("over to the writer", tool_call_id=tool_call_id)
        return Command(goto="writer", update={"note": why, "messages": [done]})

    with Desk(lambda _: written("hand_over", why="ready")) as desk:
        shadow = desk.shadow(branches=[user_update()], late="deliver")
        builder = one(shadow, Notes, tools=[hand_over])
        builder.add_node("writer", lambda _: {"messages": [AIMessage("Done.")]})
        state = run(shadow.attach(builder.compile()), QUESTION)
        assert shadow.drain_sync(timeout=10)
    assert len(shadow.ledger) == 1  # only its tool node could show this batch
    assert state["note"] == "ready"
    assert [m.type for m in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert state["messages"][1].tool_calls[0]["id"] == state["messages"][2].tool_call_id


def test_the_guard_finds_no_break_in_a_second_visit(run: Run) -> None:
    """Each visit ends with the role, and none of them extends the visit before it: no break."""
    with Desk(says) as desk:
        shadow = desk.shadow()
        graph = shadow.attach(chain(shadow, Toolbox()).compile(checkpointer=InMemorySaver()))
        config = {"configurable": {"thread_id": "t"}}
        run(graph, QUESTION, config)
        state = run(graph, {"messages": [("user", "And since 2000?")]}, config)
    assert shadow.ledger.guard == ()
    assert [m.type for m in state["messages"]][-3:] == ["human", "ai", "ai"]
    rows = ledger_of(shadow).rows
    assert all(row.predicted == row.cached > 0 for row in rows[1:])


def test_the_guard_does_find_a_real_break(run: Run) -> None:
    with Desk(says) as desk:
        shadow = desk.shadow()
        graph = chain(shadow, Toolbox()).compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}}
        first = run(graph, QUESTION, config)
        edited = HumanMessage("Another question.", id=first["messages"][0].id)
        with pytest.raises(ShadowError, match=r"messages\[1\]"):
            run(graph, {"messages": [edited]}, config)


def test_branches_follow_its_tool_batches(run: Run) -> None:
    with Desk(lambda b: "SKIP" if not role_of(b) else says(b)) as desk:
        shadow = desk.shadow(branches=[user_update()], late="deliver")
        run(shadow.attach(chain(shadow, Toolbox()).compile()), QUESTION)
        assert shadow.drain_sync(timeout=10)
    (row,) = shadow.ledger.rows
    assert row.verdict == "skip"


def test_its_answer_streams_and_its_call_does_not() -> None:
    async def stream(graph: Any) -> list[Any]:
        return [m async for m, _ in graph.astream(QUESTION, stream_mode="messages")]

    with Desk(says) as desk:
        seen = asyncio.run(stream(chain(desk.shadow(), Toolbox()).compile()))
    said = "".join(m.content for m in seen if m.type == "AIMessageChunk")
    assert said == "Let me see." + ANSWERS["finder"] + ANSWERS["critic"]
    assert len({m.id for m in seen if m.type != "tool"}) == 3


def test_a_sync_graph_runs_inside_a_running_loop() -> None:
    """As in a notebook, where a loop runs in the very thread that invokes the graph."""

    async def notebook(graph: Any) -> Any:
        return graph.invoke(QUESTION)

    with Desk(says) as desk:
        state = asyncio.run(notebook(chain(desk.shadow()).compile()))
    assert state["messages"][-1].text == ANSWERS["critic"]


def test_a_tool_may_interrupt(run: Run) -> None:
    def search(topic: str) -> str:
        """Search, when a person agrees."""
        return f"{topic}: {interrupt('may I?')}"

    with Desk(says) as desk:
        shadow = desk.shadow()
        node = specialist(shadow, name="finder", role=ROLES["finder"], tools=[search])
        builder = StateGraph(MessagesState).add_node("finder", node).add_edge(START, "finder")
        graph = builder.compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}}
        assert run(graph, QUESTION, config)["__interrupt__"]
        state = run(graph, Command(resume="yes"), config)
    assert contents(state["messages"])[2:] == [
        ("tool", "ice: yes", []),
        ("ai", ANSWERS["finder"], []),
    ]


def test_its_requests_carry_the_session(run: Run) -> None:
    with Desk(says) as desk, HashRouter([desk.port]) as router:
        llm = desk.llm(base_url=router.base_url)
        shadow = Shadow(llm, branches=[], affinity=Affinity.for_router("vllm-router"))
        run(shadow.attach(chain(shadow).compile()), QUESTION, {"configurable": {"thread_id": "t"}})
    sessions = {name.lower(): r.headers[name] for r in router.generated() for name in r.headers}
    assert len(router.generated()) == len(ROLES)
    assert sessions["x-session-id"] == shadow._affinity.session("t")


def test_a_sync_run_that_is_given_up_ends_its_request() -> None:
    with Desk(lambda _: "Ice. " * 200) as desk:
        shadow = desk.shadow()
        for _ in shadow.attach(chain(shadow).compile()).stream(QUESTION, stream_mode="messages"):
            break
    assert len(desk.bodies) == 1


def test_two_system_prompts_are_refused(run: Run) -> None:
    with Desk(says) as desk, pytest.raises(SpecialistError, match="two system prompts"):
        run(
            chain(desk.shadow()).compile(),
            {"messages": [SystemMessage("Be brief."), HumanMessage("Hello.")]},
        )


def test_a_system_prompt_in_the_state_stays_in_front(run: Run) -> None:
    given = {"messages": [SystemMessage("Be brief."), HumanMessage("Hello.")]}
    with Desk(says) as desk:
        run(one(desk.shadow(), MessagesState).compile(), given)
    assert [m["role"] for m in desk.bodies[0]["messages"]] == ["system", "user", "user"]


def test_nothing_to_stand_behind_is_refused(run: Run) -> None:
    with Desk(says) as desk, pytest.raises(SpecialistError, match="nothing in front"):
        run(one(desk.shadow(), MessagesState).compile(), {"messages": []})


@pytest.mark.parametrize("same", [True, False])
def test_an_orchestrator_in_front_sends_the_same_head(
    run: Run, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    box = Toolbox()
    with Desk(lambda b: says(b) if role_of(b) else "I ask the critic.") as desk:
        shadow = desk.shadow(guard="warn")
        head = declare(shadow, system=SYSTEM, tools=[box.search])
        model = shadow.watch(desk.llm(streaming=True)).bind_tools(
            head.tools if same else [box.publish]
        )

        def agent(state: MessagesState) -> Any:
            return {"messages": [model.invoke([SystemMessage(head.system), *state["messages"]])]}

        builder = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
        builder.add_node("critic", specialist(shadow, name="critic", role=ROLES["critic"]))
        builder.add_edge("agent", "critic")
        with caplog.at_level(logging.WARNING, "langgraph_shadow.specialists"):
            run(shadow.attach(builder.compile()), QUESTION)
    (row,) = ledger_of(shadow).rows
    assert row.predicted is not None
    assert (row.cached > len(SYSTEM)) is same
    assert ("sends another system prompt, other tools" in caplog.text) is not same
