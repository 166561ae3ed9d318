"""Renderers: what the server is asked, and how a template is prepared for."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.alignment.render import (
    Detokenizer,
    Prompt,
    Renderer,
    RendererUnavailableError,
    Rendering,
    common,
)
from langgraph_shadow.alignment.render_local import LocalRenderer, prepare
from langgraph_shadow.alignment.render_server import ServerRenderer, WireRenderer
from langgraph_shadow.errors import AlignmentError

ZOO = Path(__file__).parent / "template_zoo"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"q": "é"}'}}


class Server:
    """Records what is posted and answers as vLLM does."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.posted: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.posted.append((path, body))
        return self.answer


async def test_the_server_is_asked_what_the_chat_route_would_render() -> None:
    server = Server(tokens=[1, 2, 3])
    prompt = Prompt(
        model="m",
        messages=(
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
        ),
        tools=(TOOL,),
        fields={
            "reasoning_effort": "none",
            "chat_template_kwargs": {"custom": 1},
            "chat_template": "{{ messages }}",
            "documents": [{"text": "d"}],
            "cache_salt": "s",
        },
    )
    before = copy.deepcopy(prompt)
    rendering = await ServerRenderer(server, model="m").render(prompt)
    assert rendering == Rendering("tokens", (1, 2, 3), "/tokenize")
    assert prompt == before
    assert server.posted == [
        (
            "/tokenize",
            {
                "model": "m",
                "messages": [
                    {"role": "user", "content": "hi"},
                    # /tokenize reads only the new name
                    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning": "hm"},
                ],
                "tools": [TOOL],
                "add_generation_prompt": True,
                "continue_final_message": False,
                "chat_template": "{{ messages }}",
                "chat_template_kwargs": {
                    "custom": 1,
                    "enable_thinking": False,
                    "reasoning_effort": "none",
                    "documents": [{"text": "d"}],
                },
            },
        )
    ]


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, None),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True}),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "high", "enable_thinking": False},
        ),
    ],
)
async def test_an_effort_switches_thinking_unless_the_user_did(
    fields: dict[str, Any], kwargs: dict[str, Any] | None
) -> None:
    server = Server(tokens=[])
    prompt = Prompt(model="m", messages=({"role": "user", "content": "hi"},), fields=fields)
    await ServerRenderer(server, model="m").render(prompt)
    body = server.posted[0][1]
    assert body.get("chat_template_kwargs") == kwargs
    assert "tools" not in body


async def test_bare_texts_go_to_the_server_too() -> None:
    server = Server(tokens=[7], prompt="seven")
    renderer = ServerRenderer(server, model="m")
    assert await renderer.tokens("seven") == (7,)
    assert await renderer.tokens("seven") == (7,)  # asked for once
    assert await renderer.text((7,)) == "seven"
    assert server.posted == [
        ("/tokenize", {"model": "m", "prompt": "seven", "add_special_tokens": False}),
        ("/detokenize", {"model": "m", "tokens": [7]}),
    ]


async def test_an_answer_that_is_not_vllms_makes_the_renderer_unavailable() -> None:
    renderer = ServerRenderer(Server(data="?"), model="m")
    with pytest.raises(RendererUnavailableError, match="not vLLM's"):
        await renderer.render(Prompt(model="m", messages=({"role": "user", "content": "hi"},)))


@pytest.mark.parametrize(
    ("message", "prepared"),
    [
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        (
            {"role": "tool", "tool_call_id": "c1", "name": "f", "status": "ok", "content": "x"},
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "x"},
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, "b"]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "user", "content": ["a", {"type": "image_url"}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": []},
            {"role": "assistant", "content": ""},
        ),
        (
            {"role": "assistant", "content": None, "reasoning_content": "hm"},
            {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm"},
        ),
    ],
)
def test_messages_are_prepared_as_vllm_does(
    message: dict[str, Any], prepared: dict[str, Any]
) -> None:
    assert prepare(message) == prepared


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ('{"q": "é"}', {"q": "é"}),
        ({"q": 1}, {"q": 1}),
        ("", {}),
        (None, {}),
        ("{broken", {}),
        ("[1]", {}),
    ],
)
def test_arguments_become_objects(given_: Any, expected: dict[str, Any]) -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": given_}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert prepare(message)["tool_calls"][0]["function"]["arguments"] == expected
    assert call["function"]["arguments"] == given_


def test_arguments_stay_text_for_templates_that_need_it() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    call = prepare(message, arguments="string")["tool_calls"][0]
    assert call["function"]["arguments"] == '{"q": "é"}'


def test_a_template_runs_under_transformers_rules() -> None:
    source = (
        "{% for m in messages %}\n"
        "  {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}\n"
        "{% endfor %}\n"
        "{{ strftime_now('%Y') }}{{ bos_token }}{{ level }}"
    )
    renderer = LocalRenderer(source, clock=lambda pattern: f"<{pattern}>")
    prompt = Prompt(
        model="m",
        messages=({"role": "user", "content": "é<"}, {"role": "user", "content": "no"}),
        fields={"chat_template_kwargs": {"level": 3}},
    )
    assert renderer.render_now(prompt).items == '"é<"<%Y><s>3'
    with pytest.raises(AlignmentError, match="SecurityError"):
        LocalRenderer("{{ messages.append(1) }}").render_now(prompt)


def test_a_template_that_raises_is_quoted() -> None:
    renderer = LocalRenderer.from_file(ZOO / "raises.jinja")
    with pytest.raises(AlignmentError, match="takes no prisoners"):
        renderer.render_now(Prompt(model="m", messages=({"role": "user", "content": "hi"},)))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jinja"
    bad.write_bytes(b"\xff\xfe{{ x }}")
    for path in (bad, tmp_path / "none.jinja"):
        with pytest.raises(AlignmentError, match=f"{path.name} cannot be read as a UTF-8"):
            LocalRenderer.from_file(path)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.utils.chat_template_utils", None)
    with pytest.raises(AlignmentError, match=r"langgraph-shadow\[templates\]"):
        LocalRenderer("{{ messages }}")


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text()})
)


@given(MESSAGES, MESSAGES)
async def test_wire_text_extends_as_the_trunk_does(
    before: list[dict[str, str]], more: list[dict[str, str]]
) -> None:
    wire = WireRenderer()
    short = await wire.render(Prompt(model="m", messages=tuple(before)))
    long = await wire.render(Prompt(model="m", messages=(*before, *more)))
    assert common(short, long) == len(short)


def test_different_units_are_never_compared() -> None:
    tokens, characters = Rendering("tokens", (1,), "a"), Rendering("characters", "1", "b")
    with pytest.raises(AlignmentError, match=r"tokens \(from a\) with characters \(from b\)"):
        common(tokens, characters)


def test_every_renderer_keeps_the_protocol() -> None:
    renderers = [
        ServerRenderer(Server(), model="m"),
        WireRenderer(),
        LocalRenderer("{{ messages }}"),
    ]
    for renderer in renderers:
        assert isinstance(renderer, Renderer)
        assert isinstance(renderer, Detokenizer)
