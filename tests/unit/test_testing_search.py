"""The ghost search finds what it must, and nothing else."""

from __future__ import annotations

from collections import defaultdict

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_shadow.testing.search import count_ghosts

SAID = "Der Agent hat „csv“ gefunden."
DOC = "csv.reader\n\nReads a file."


def test_every_hiding_place_is_searched() -> None:
    places = [
        SAID,
        {"deep": [{"er": (f"x {SAID} y",)}]},
        {SAID: 1},
        AIMessage("", additional_kwargs={"note": SAID}),
        ToolMessage(f"{DOC}\n{SAID}", tool_call_id="1"),
        b"\x93\xa5" + SAID.encode() + b"\xff",
        defaultdict(dict, {("t", "ns"): {1: ("msgpack", SAID.encode())}}),
    ]
    for place in places:
        assert count_ghosts([SAID], [place], own=[DOC]) == 1, place
    assert count_ghosts([SAID], places, own=[DOC]) == len(places)


def test_what_the_agent_said_and_read_itself_is_no_ghost() -> None:
    sentence = "Reads a file."
    place = ToolMessage(DOC, tool_call_id="1")
    assert count_ghosts([sentence], [place], own=[]) == 1
    assert count_ghosts([sentence], [place], own=[DOC]) == 0
    assert count_ghosts([sentence], [f"{DOC} {sentence}"], own=[DOC]) == 1


def test_a_short_reply_hides_no_ghost() -> None:
    assert count_ghosts(["The csv module."], ["The csv module."], own=["The", "csv"]) == 1


def test_empty_texts_count_for_nothing() -> None:
    assert count_ghosts(["", "  "], ["anything", b""], own=[""]) == 0


def test_it_reads_a_savers_raw_rows() -> None:
    saver = InMemorySaver()
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda _: {"messages": [AIMessage(f"Well: {SAID}")]})
    builder.add_edge(START, "agent")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": ["hello"]}, {"configurable": {"thread_id": "1"}})
    assert count_ghosts([SAID], [saver.storage, saver.writes, saver.blobs], own=[]) > 0
    assert count_ghosts(["not said"], [saver.storage, saver.writes, saver.blobs], own=[]) == 0
