"""The ghost search finds what it must, and nothing else."""

from __future__ import annotations

import json
from collections import defaultdict

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Interrupt, Send

from langgraph_shadow.branches.verdict import read_verdict
from langgraph_shadow.testing import GhostFound, ghost_branch
from langgraph_shadow.testing.search import Wanted, count_ghosts

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


def test_a_ghost_names_its_path_and_what_is_around_it() -> None:
    state = {"messages": [ToolMessage(f"{DOC}\n{SAID} Sehr gut.", tool_call_id="1")]}
    (ghost,) = Wanted([SAID]).found_in(state, place="state")
    assert (ghost.place, ghost.path) == ("state", ".messages.0.content")
    assert SAID in ghost.excerpt
    assert f"{SAID!r} at state.messages.0.content" in str(GhostFound([ghost]))


def test_it_is_found_however_it_is_written() -> None:
    assert count_ghosts([SAID], [json.dumps({"text": SAID})], own=[]) == 1
    said = 'It said "two\nlines".'
    assert count_ghosts([said], [json.dumps([said]), said], own=[]) == 2


def test_dataclasses_tuples_with_names_and_errors_are_searched() -> None:
    holding = [Interrupt(value=[SAID]), Send("tools", {"say": SAID}), ValueError(SAID)]
    for value in holding:
        assert count_ghosts([SAID], [value], own=[]) == 1, value


def test_a_value_that_holds_itself_is_searched_once() -> None:
    loop: list[object] = [SAID]
    loop.append(loop)
    assert count_ghosts([SAID], [loop], own=[]) == 1


def test_a_ghost_branch_is_marked_in_prompt_and_answer() -> None:
    ghost, other = ghost_branch(), ghost_branch(name="other")
    assert ghost.prompt_mark in ghost.instruction
    assert ghost.answer_mark in ghost.answer
    assert len({ghost.prompt_mark, ghost.answer_mark, other.prompt_mark, other.answer_mark}) == 4
    fields = ghost.request_fields()
    assert fields["structured_outputs"] == {"choice": [ghost.answer]}
    verdict = read_verdict(ghost.answer, branch=ghost, finish_reason="stop")
    assert (verdict.kind, verdict.text) == ("update", ghost.answer)
