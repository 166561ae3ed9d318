"""Every way that shadow text could leak is caught by the same check, which names the place."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_config, get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langgraph_shadow import Shadow
from langgraph_shadow.testing import (
    GhostFound,
    aassert_no_ghosts,
    assert_no_ghosts,
    ghost_branch,
)

MODEL = "GenericFakeChatModel"
GHOST = "The agent has found „csv“ for you."
EVERYWHERE = {
    "stream values",
    "stream tasks",
    "stream debug",
    "stream checkpoints",
    "state",
    "checkpoints",
    "checkpoint",
    "v3 values",
}


class State(MessagesState):
    notes: Annotated[list[str], operator.add]


class Saver(InMemorySaver):
    """Runs what a leak put off until the graph has ended and its checkpoints are read."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[Callable[[], Any]] = []

    def list(self, *args: Any, **kwargs: Any) -> Any:
        while self.later:
            self.later.pop()()
        return super().list(*args, **kwargs)


class Tools:
    """A tool node that does its work, and leaks in one way."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver

    def clean(self, state: State) -> dict[str, Any]:
        get_stream_writer()({"type": "shadow.update", "text": GHOST})
        return {"messages": [AIMessage("read")]}

    def extra_message(self, state: State) -> dict[str, Any]:
        return {"messages": [AIMessage("read"), AIMessage(f"Well: {GHOST}")]}

    def mutated_message(self, state: State) -> dict[str, Any]:
        state["messages"][0].content += GHOST
        return {}

    def mutated_arguments(self, state: State) -> dict[str, Any]:
        state["messages"][0].additional_kwargs["note"] = {"deep": [GHOST]}
        return {}

    def other_channel(self, state: State) -> dict[str, Any]:
        return {"notes": [GHOST]}

    def inherited_call(self, state: State) -> dict[str, Any]:
        GenericFakeChatModel(messages=iter([AIMessage(GHOST)])).invoke("what did you find?")
        return {"messages": [AIMessage("read")]}

    def quiet_call(self, state: State) -> dict[str, Any]:
        model = GenericFakeChatModel(messages=iter([AIMessage(GHOST)]))
        model.invoke("what did you find?", {"tags": ["nostream"]})
        return {"messages": [AIMessage("read")]}

    def inherited_prompt(self, state: State) -> dict[str, Any]:
        GenericFakeChatModel(messages=iter([AIMessage("yes")])).invoke(GHOST)
        return {"messages": [AIMessage("read")]}

    def nested_run(self, state: State) -> dict[str, Any]:
        RunnableLambda(lambda text: len(text), name="shadow").invoke(GHOST)
        return {"messages": [AIMessage("read")]}

    def late_run(self, state: State) -> dict[str, Any]:
        context, shadow = copy_context(), RunnableLambda(lambda text: len(text), name="shadow")
        self.saver.later.append(lambda: context.run(lambda: shadow.invoke(GHOST, get_config())))
        return {"messages": [AIMessage("read")]}

    def named_run(self, state: State) -> dict[str, Any]:
        RunnableLambda(lambda text: text, name="child").invoke("x", {"metadata": {"why": GHOST}})
        return {"messages": [AIMessage("read")]}

    def failing_run(self, state: State) -> dict[str, Any]:
        def fail(_: str) -> None:
            raise ConnectionError(GHOST)

        RunnableLambda(fail, name="shadow").with_fallbacks([RunnableLambda(lambda x: x)]).invoke("")
        return {"messages": [AIMessage("read")]}

    def interrupted(self, state: State) -> dict[str, Any]:
        interrupt({"say": GHOST})
        return {}

    def other_thread(self, state: State) -> dict[str, Any]:
        self.saver.put_writes(elsewhere(get_config()), [("notes", [GHOST])], "task")
        return {"messages": [AIMessage("read")]}


def elsewhere(config: RunnableConfig) -> RunnableConfig:
    found = config["configurable"]
    return {
        "configurable": {
            "thread_id": "elsewhere",
            "checkpoint_ns": "",
            "checkpoint_id": found.get("checkpoint_id") or "1",
        }
    }


ALSO = {
    "extra_message": EVERYWHERE | {"stream updates", "stream messages", "v3 messages"},
    "other_channel": EVERYWHERE | {"stream updates", "pending write"},
    "mutated_message": EVERYWHERE,
    "mutated_arguments": EVERYWHERE,
    "interrupted": {"stream updates", "stream tasks", "state", "pending write"},
}
"""Leaks that spread, and places where they must be seen."""

ONLY = {
    "inherited_call": {
        "stream messages",
        "v3 messages",
        *(f"astream_events on_chat_model_{part} of {MODEL}" for part in ("stream", "end")),
        f"trace LangGraph > tools > {MODEL}",
    },
    "quiet_call": {
        *(f"astream_events on_chat_model_{part} of {MODEL}" for part in ("stream", "end")),
        f"trace LangGraph > tools > {MODEL}",
    },
    "inherited_prompt": {
        *(f"astream_events on_chat_model_{part} of {MODEL}" for part in ("start", "end")),
        f"trace LangGraph > tools > {MODEL}",
    },
    "nested_run": {
        *(f"astream_events on_chain_{part} of shadow" for part in ("start", "end")),
        "trace LangGraph > tools > shadow",
    },
    "named_run": {
        *(f"astream_events on_chain_{part} of child" for part in ("start", "end")),
        "trace LangGraph > tools > child",
    },
    "late_run": {"trace LangGraph > tools > shadow"},
    "failing_run": {"trace LangGraph > tools > shadow"},
    "other_thread": {"saver writes"},
}
"""Leaks that show nowhere but here."""


def graph_of(tools: Tools, name: str) -> Any:
    builder = StateGraph(State)
    builder.add_node("agent", lambda _: {"messages": [AIMessage("asking")]})
    builder.add_node("tools", getattr(tools, name))
    builder.add_node("answer", lambda _: {"messages": [AIMessage("done")]})
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "tools")
    builder.add_edge("tools", "answer")
    return builder.compile(tools.saver)


QUESTION = {"messages": [("user", "csv?")]}


@pytest.mark.parametrize("name", [*ALSO, *ONLY])
async def test_a_leak_is_caught_where_it_is(name: str) -> None:
    graph = graph_of(Tools(Saver()), name)
    with pytest.raises(GhostFound) as caught:
        await aassert_no_ghosts(graph, QUESTION, ghosts=[GHOST])
    places = set(caught.value.places)
    assert places == ONLY[name] if name in ONLY else places >= ALSO[name]
    assert {ghost.text for ghost in caught.value.ghosts} == {GHOST}
    assert all(place in str(caught.value) for place in places)


@pytest.mark.parametrize("name", [*ALSO, *ONLY])
def test_a_leak_is_caught_in_a_synchronous_run(name: str) -> None:
    graph = graph_of(Tools(Saver()), name)
    with pytest.raises(GhostFound) as caught:
        assert_no_ghosts(graph, QUESTION, ghosts=[GHOST])
    places = set(caught.value.places)
    if name in ONLY:
        assert places == {p for p in ONLY[name] if not p.startswith("astream_events")}
    else:
        assert places >= ALSO[name]


def test_sqlite_rows_are_read_as_they_are(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "kept.sqlite")) as saver:
        with pytest.raises(GhostFound) as caught:
            assert_no_ghosts(graph_of(Tools(saver), "other_thread"), QUESTION, ghosts=[GHOST])
        assert caught.value.places == ("saver table writes",)
        with pytest.raises(GhostFound) as caught:
            assert_no_ghosts(graph_of(Tools(saver), "mutated_message"), QUESTION, ghosts=[GHOST])
        assert "saver table checkpoints" in caught.value.places


async def test_sqlite_rows_are_read_asynchronously_too(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "kept.sqlite")) as saver:
        graph = graph_of(Tools(saver), "extra_message")
        with pytest.raises(GhostFound) as caught:
            await aassert_no_ghosts(graph, QUESTION, ghosts=[GHOST])
        assert {"saver table checkpoints", "saver table writes"} <= set(caught.value.places)


@pytest.mark.parametrize("subgraphs", [True, False])
async def test_a_leak_in_a_subgraph_is_caught(subgraphs: bool) -> None:
    saver = InMemorySaver()
    child = graph_of(Tools(None), "other_channel")
    builder = StateGraph(MessagesState)
    builder.add_node("child", child)
    builder.add_edge(START, "child")
    with pytest.raises(GhostFound) as caught:
        await aassert_no_ghosts(
            builder.compile(saver), QUESTION, ghosts=[GHOST], subgraphs=subgraphs
        )
    places = caught.value.places
    assert any(p.startswith("stream values of child:") for p in places) is subgraphs
    assert {"checkpoint", "pending write", "saver blobs"} <= set(places)
    assert any(p.startswith("trace LangGraph > child > ") for p in places)


async def test_custom_events_may_say_it_and_all_places_are_searched() -> None:
    graph = graph_of(Tools(InMemorySaver()), "clean")
    search = await aassert_no_ghosts(graph, QUESTION, ghosts=[GHOST])
    assert search.ghosts == (GHOST,)
    assert len(set(search.threads)) == 3
    assert {*EVERYWHERE, "stream updates", "stream messages", "v3 messages"} <= set(search.places)
    assert {"pending write", "saver storage", "saver writes", "saver blobs"} <= set(search.places)
    assert any(place.startswith("astream_events") for place in search.places)
    assert "trace LangGraph > tools" in search.places


def test_a_resumed_run_is_searched_too() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{interrupt('?')}")]}

    tools = Tools(InMemorySaver())
    tools.ask = ask  # type: ignore[attr-defined]
    graph = graph_of(tools, "ask")
    assert_no_ghosts(graph, QUESTION, ghosts=[GHOST])
    then = [Command(resume=GHOST)]
    with pytest.raises(GhostFound):
        assert_no_ghosts(graph, QUESTION, ghosts=[GHOST], then=then)
    assert_no_ghosts(graph, QUESTION, ghosts=[GHOST], then=then, own=[GHOST])


def test_a_graph_without_a_checkpointer_is_searched() -> None:
    search = assert_no_ghosts(graph_of(Tools(None), "clean"), QUESTION, ghosts=[GHOST])
    assert "state" not in search.places
    with pytest.raises(GhostFound):
        assert_no_ghosts(graph_of(Tools(None), "other_channel"), QUESTION, ghosts=[GHOST])


def test_a_search_that_proves_nothing_fails() -> None:
    graph = graph_of(Tools(None), "clean")
    with pytest.raises(ValueError, match="nothing to look for"):
        assert_no_ghosts(graph, QUESTION)
    with pytest.raises(ValueError, match="aassert_no_ghosts"):
        assert_no_ghosts(graph, QUESTION, ghosts=[GHOST], ways=["events"])
    llm = ChatOpenAI(base_url="http://127.0.0.1:9/v1", model="m", api_key="x")
    shadow = Shadow(llm, branches=[ghost_branch()])
    with pytest.raises(AssertionError, match="no branch ran"):
        assert_no_ghosts(shadow.attach(graph), QUESTION, shadow=shadow)
