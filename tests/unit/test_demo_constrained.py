"""Which replies a model too small for tool calls is left with, and how they are read."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_shadow.demo.constrained import (
    MAX_BATCHES,
    MIN_BATCHES,
    allowed,
    constraint,
    query_pattern,
    read_reply,
)

ASKED = HumanMessage("How do I copy a whole directory tree?")
FOUND = "shutil.copytree: Copy a tree.\nshutil.rmtree: Delete a tree.\nos.rmdir: Remove one."
ANSWER = "You can use the `shutil.copytree` function. It copies the tree."


def called(name: str, /, **args: str) -> str:
    call = json.dumps({"name": name, "arguments": args})
    return f"<tool_call>\n{call}\n</tool_call>"


def turn(*steps: tuple[str, str]) -> list[BaseMessage]:
    """A history in which the model said each text, and the tool returned each result."""
    messages: list[BaseMessage] = [ASKED]
    for said, result in steps:
        reply = read_reply(AIMessage(said), messages)
        call = reply.tool_calls[0]
        messages += [reply, ToolMessage(result, tool_call_id=call["id"], name=call["name"])]
    return messages


SEARCH = (called("search_docs", query="copy directory tree"), FOUND)
READ = (called("read_doc", name="shutil.rmtree"), "shutil.rmtree(path)\n\nDelete: a tree.")


def may(text: str, messages: list[BaseMessage]) -> bool:
    return re.fullmatch(allowed(messages), text) is not None


def test_the_first_call_is_a_search_in_the_questions_words() -> None:
    assert may(called("search_docs", query="copy whole directory"), [ASKED])
    assert may(called("search_docs", query="copy whole directory tree"), [ASKED])
    assert not may(called("search_docs", query="tree directory copy"), [ASKED])
    assert not may(called("search_docs", query="how to bake"), [ASKED])
    assert not may(called("read_doc", name="shutil"), [ASKED])
    assert not may(ANSWER, [ASKED])


def test_after_a_search_one_of_its_names_is_read() -> None:
    messages = turn(SEARCH)
    assert may(called("read_doc", name="os.rmdir"), messages)
    assert not may(called("read_doc", name="osXrmdir"), messages)
    assert not may(called("read_doc", name="csv"), messages)
    assert not may(called("search_docs", query="copy whole directory"), messages)
    assert not may(ANSWER, messages)


def test_nothing_is_read_twice() -> None:
    messages = turn(SEARCH, READ)
    assert not may(called("read_doc", name="shutil.rmtree"), messages)
    assert may(called("read_doc", name="shutil.copytree"), messages)


def test_the_answer_is_allowed_after_three_batches_and_due_after_the_last() -> None:
    reads = [
        (called("read_doc", name=name), f"{name}()")
        for name in ("os.rmdir", "shutil.copytree", "shutil.rmtree")
    ]
    middle = turn(SEARCH, *reads[: MIN_BATCHES - 1])
    assert may(ANSWER, middle)
    assert may(called("read_doc", name="shutil.rmtree"), middle)
    end = turn(SEARCH, *reads[: MAX_BATCHES - 1])
    assert may(ANSWER, end)
    assert "tool_call" not in allowed(end)


def test_an_answer_is_up_to_three_whole_sentences() -> None:
    messages = turn(SEARCH, READ, (called("read_doc", name="os.rmdir"), "os.rmdir()"))
    assert may("Use shutil.copytree(src, dst). It works. It does.", messages)
    assert not may("One. Two. Three. Four.", messages)
    assert not may("It ends in the mid", messages)
    assert not may("Use <tool_call> now.", messages)


def test_an_empty_search_does_not_end_in_a_dead_end() -> None:
    nothing = (called("search_docs", query="copy whole directory tree"), "Nothing matches.")
    assert may(ANSWER, turn(nothing))


def test_a_new_question_starts_over_with_fresh_ids() -> None:
    messages = [*turn(SEARCH, READ), AIMessage(ANSWER), HumanMessage("How do I parse JSON text?")]
    assert may(called("search_docs", query="parse json text"), messages)
    assert not may(called("read_doc", name="os.rmdir"), messages)
    reply = read_reply(AIMessage(called("search_docs", query="parse json text")), messages)
    assert reply.tool_calls[0]["id"] == "call_3"


@given(st.text(max_size=60), st.text(alphabet="abc ", max_size=10))
def test_a_query_pattern_is_words_and_spaces_only(question: str, searched: str) -> None:
    assert re.fullmatch(r"[\w |]*|\[a-z\].*", query_pattern(question, searched))


@pytest.mark.parametrize("question", ["", "?", "how do I", "copy"])
def test_a_question_without_words_still_allows_a_search(question: str) -> None:
    assert may(called("search_docs", query="copy"), [HumanMessage(question)])


def test_the_constraint_is_a_field_of_the_request() -> None:
    assert constraint([ASKED]) == {"structured_outputs": {"regex": allowed([ASKED])}}


def test_a_call_is_read_and_the_reply_itself_left_alone() -> None:
    raw = AIMessage(SEARCH[0], id="run-1", response_metadata={"a": 1})
    read = read_reply(raw, [ASKED])
    assert read.tool_calls == [
        {
            "name": "search_docs",
            "args": {"query": "copy directory tree"},
            "id": "call_1",
            "type": "tool_call",
        }
    ]
    assert (read.content, read.id, read.response_metadata) == ("", "run-1", {"a": 1})
    assert raw.content == SEARCH[0]
    assert raw.tool_calls == []


def test_an_answer_is_passed_through() -> None:
    reply = AIMessage(ANSWER)
    assert read_reply(reply, [ASKED]) is reply
