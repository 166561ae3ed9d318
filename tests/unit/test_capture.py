"""Capture: exact, incremental, and it never touches what it is shown."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_openai import ChatOpenAI

from langgraph_shadow.trunk.capture import Capture
from langgraph_shadow.trunk.model import Trunk, TrunkKey
from langgraph_shadow.trunk.wire import wire_messages, wire_request

LLM = ChatOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", model="m", use_responses_api=False)
KEY = TrunkKey("thread", "", "agent")
REQUEST = wire_request({"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}]})

texts = st.text(max_size=20)
messages = st.one_of(
    st.builds(HumanMessage, content=texts),
    st.builds(SystemMessage, content=texts),
    st.builds(
        AIMessage,
        content=texts,
        tool_calls=st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.just("f"),
                    "args": st.dictionaries(texts, st.integers(0, 9), max_size=2),
                    "id": texts,
                    "type": st.just("tool_call"),
                }
            ),
            max_size=2,
        ),
    ),
    st.builds(ToolMessage, content=texts, tool_call_id=texts),
)


def built_afresh(history: list[BaseMessage]) -> Trunk:
    return Trunk.build(
        key=KEY,
        model="m",
        messages=wire_messages(LLM, history),
        tools=REQUEST.tools,
        fields=REQUEST.fields,
    )


@given(st.lists(st.lists(messages, max_size=5), min_size=1, max_size=4))
def test_any_sequence_of_histories_is_captured_as_if_each_were_the_first(
    histories: list[list[BaseMessage]],
) -> None:
    capture = Capture()
    for history in histories:
        before = copy.deepcopy(history)
        trunk = capture.trunk(LLM, history, REQUEST, KEY)
        assert history == before
        assert trunk == built_afresh(history)


@given(st.lists(messages, max_size=6), st.lists(messages, max_size=3))
def test_a_longer_history_extends_the_shorter(
    history: list[BaseMessage], more: list[BaseMessage]
) -> None:
    capture = Capture()
    first = capture.trunk(LLM, history, REQUEST, KEY)
    second = capture.trunk(LLM, [*history, *more], REQUEST, KEY)
    assert second.extends(first)


def test_an_edit_in_place_is_seen() -> None:
    capture = Capture()
    call = {"name": "f", "args": {"deep": {"x": 1}}, "id": "c1", "type": "tool_call"}
    history: list[BaseMessage] = [HumanMessage("q"), AIMessage("", tool_calls=[call])]
    capture.trunk(LLM, history, REQUEST, KEY)
    answer = history[1]
    assert isinstance(answer, AIMessage)
    answer.tool_calls[0]["args"]["deep"]["x"] = 2
    assert capture.trunk(LLM, history, REQUEST, KEY) == built_afresh(history)


def test_only_new_messages_are_serialised(monkeypatch: Any) -> None:
    serialised: list[int] = []

    def counting(llm: ChatOpenAI, new: list[BaseMessage]) -> Any:
        serialised.append(len(new))
        return wire_messages(llm, new)

    monkeypatch.setattr("langgraph_shadow.trunk.capture.wire_messages", counting)
    capture = Capture()
    history: list[BaseMessage] = [HumanMessage(str(i)) for i in range(50)]
    capture.trunk(LLM, history, REQUEST, KEY)
    capture.trunk(LLM, [*history, HumanMessage("new")], REQUEST, KEY)
    assert serialised == [50, 1]


def test_two_nodes_are_two_lines_and_old_lines_fall_out() -> None:
    capture = Capture(max_lines=1)
    one = capture.trunk(LLM, [HumanMessage("a")], REQUEST, KEY)
    other = TrunkKey("thread", "", "critic")
    two = capture.trunk(LLM, [SystemMessage("b")], REQUEST, other)
    assert one.key.node != two.key.node
    assert len(capture._lines) == 1


def test_fields_of_extra_body_are_part_of_the_trunk() -> None:
    request = wire_request(
        {
            "model": "m",
            "temperature": 0.1,
            "extra_body": {"cache_salt": "s", "chat_template_kwargs": {"x": 1}, "priority": 3},
            "extra_headers": {"X-Session-ID": "t"},
        }
    )
    assert request.fields == {"cache_salt": "s", "chat_template_kwargs": {"x": 1}}
    assert request.headers == {"X-Session-ID": "t"}
