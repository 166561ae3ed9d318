"""How a call is written, which ones can be decoded, and what a reply holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.alignment.render import Prompt, Rendering
from langgraph_shadow.specialists.calls import (
    HERMES,
    AskedCall,
    CallForm,
    Prose,
    asked_call,
    constraint,
    learn_form,
)

SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {"topic": {"type": "string"}},
            "required": ["topic"],
        },
    },
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"topic": "ice"}}\n</tool_call>'


def other(name: str) -> str:
    return CALL.replace("search", name)


class Template:
    """Renders characters, and a call by a function."""

    unit = "characters"

    def __init__(self, call: Any) -> None:
        self.call = call

    async def render(self, prompt: Prompt) -> Rendering:
        text = "<|bos|>"
        for message in prompt.messages:
            calls = "".join(
                self.call(c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in message.get("tool_calls") or ()
            )
            text += f"<|{message['role']}|>{message['content']}{calls}<|end|>\n"
        opener = "<|assistant|>" if prompt.add_generation_prompt else ""
        return Rendering("characters", text + opener, "test")

    async def tokens(self, text: str) -> str:
        return text

    async def text(self, items: Any) -> str:
        return str(items)


async def learnt(call: Any) -> CallForm:
    return await learn_form(Prompt("m", (), (SEARCH,)), Template(call))  # type: ignore[arg-type]


async def test_hermes_is_learnt() -> None:
    form = await learnt(
        lambda n, a: f'<tool_call>\n{{"name": "{n}", "arguments": {json.dumps(a)}}}\n</tool_call>'
    )
    assert form == HERMES


async def test_another_form_is_learnt() -> None:
    form = await learnt(lambda n, a: f'{{"name": "{n}", "parameters": {json.dumps(a)}}}')
    assert form == CallForm('{"name": "', '", "parameters": ', "}")
    assert asked_call('{"name": "search", "parameters": {"topic": "ice"}}', form) == AskedCall(
        "search", {"topic": "ice"}
    )
    assert asked_call("The name is ice.", form) is None


async def test_arguments_that_are_no_json_fall_back() -> None:
    form = await learnt(lambda n, a: f"<function={n}>" + "".join(f"<{k}>{v}" for k, v in a.items()))
    assert form == HERMES


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CALL, AskedCall("search", {"topic": "ice"})),
        (f"I will look.\n{CALL}", AskedCall("search", {"topic": "ice"})),
        ('<tool_call>{"name":"search","arguments":{}}</tool_call>', AskedCall("search", {})),
        (CALL[:-30], AskedCall("", {})),
        ("<tool_call>search</tool_call>", AskedCall("", {})),
        ("Ice is cold.", None),
        ("", None),
    ],
)
def test_the_call_in_a_reply(text: str, found: AskedCall | None) -> None:
    assert asked_call(text, HERMES) == found


@pytest.mark.parametrize(
    ("calls", "text", "decodable"),
    [
        ("may", CALL, True),
        ("may", "Ice is cold.", True),
        ("may", f"I will look. {CALL}", True),
        ("may", other("publish"), False),
        ("may", "<tool_call>publish</tool_call>", False),
        ("may", CALL + other("publish"), False),
        ("must", CALL, True),
        ("must", "Ice is cold.", False),
        ("must", other("publish"), False),
        ("none", "Ice is cold.", True),
        ("none", CALL, False),
        ("none", other("publish"), False),
    ],
)
def test_only_its_own_calls_can_be_decoded(calls: Any, text: str, decodable: bool) -> None:
    """By the grammar engine that vLLM uses."""
    xgrammar = pytest.importorskip("xgrammar", reason="needs the extra `cpu`")
    testing = pytest.importorskip("xgrammar.testing")
    tag = constraint(HERMES, [SEARCH], calls)["structured_outputs"]["structural_tag"]
    grammar = xgrammar.Grammar.from_structural_tag(tag)
    assert testing._is_grammar_accept_string(grammar, text) is decodable


def test_without_tools_of_its_own_no_call_can_be_decoded() -> None:
    assert constraint(HERMES, [], "may") == constraint(HERMES, [SEARCH], "none")


@given(
    st.sampled_from(
        [
            "Ice is cold.",
            f"  I will look. \n{CALL}",
            "<think>hm, <tool_call> or not</think>\n\nIce < water, and <b>.",
            "A <tool is no call",
            CALL,
        ]
    ),
    st.lists(st.integers(1, 12), min_size=1),
)
def test_text_is_the_same_however_it_comes(text: str, sizes: list[int]) -> None:
    whole = Prose("<tool_call>", thinking_open=False)
    expected = whole.feed(text) + whole.feed("", final=True)
    prose, shown, place = Prose("<tool_call>", thinking_open=False), "", 0
    for size in sizes * len(text):
        shown += prose.feed(text[place : place + size])
        place += size
        assert "<tool_call>" not in shown
        assert "think" not in shown
    assert shown + prose.feed("", final=True) == expected
    assert asked_call(prose.raw, HERMES) == asked_call(whole.raw, HERMES)


def test_thinking_that_the_prompt_opened_is_not_shown() -> None:
    prose = Prose(None, thinking_open=True)
    assert prose.feed("Let me see.") == ""
    assert prose.feed("</think> Ice is cold.") == "Ice is cold."
