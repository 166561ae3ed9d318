"""Which fields of a message reach the prompt: by rule, or probed on a template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.alignment.render import Prompt, Renderer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class FieldRules:
    """Which differences between two messages change the prompt. None means not known.

    What is not known falls back on a rule: tool call ids, argument spacing, reasoning and the
    names of people and agents are taken to reach the prompt; a tool result's name, null against
    empty content and text parts against a string are not, because vLLM maps them to the same
    (facts/templates.md §4).

    Attributes:
        ids: Tool call ids are rendered (31 of 431 templates).
        names: A message's `name` is rendered (13 of 431 templates).
        null_content: `content: null` renders unlike `content: ""`.
        text_parts: A list of text parts renders unlike the same text as a string.
        argument_text: The spacing of a tool call's arguments is rendered; False when they are
            parsed first.
        reasoning: An assistant message's reasoning is rendered.
    """

    ids: bool | None = None
    names: bool | None = None
    null_content: bool | None = None
    text_parts: bool | None = None
    argument_text: bool | None = None
    reasoning: bool | None = None


_USER = {"role": "user", "content": "What is the level?"}
_RESULT = "The level is 4.1 m."


def _call(
    *, call_id: str = "a1b2c3d4e", arguments: str = '{"river": "Ume", "year": 7}'
) -> dict[str, Any]:
    function = {"name": "level", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _result(call_id: str = "a1b2c3d4e", **extra: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": _RESULT, **extra}


_LOOP: Sequence[Mapping[str, Any]] = (_USER, _call(), _result())
# Ids of nine letters and digits, because some templates refuse others.
_VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "ids": (_USER, _call(call_id="z9y8x7w6v"), _result("z9y8x7w6v")),
    "names": ({**_USER, "name": "ada"}, {**_call(), "name": "bot"}, _result(name="level")),
    "null_content": (_USER, {**_call(), "content": None}, _result()),
    "text_parts": (
        {**_USER, "content": [{"type": "text", "text": _USER["content"]}]},
        _call(),
        _result(),
    ),
    "argument_text": (_USER, _call(arguments='{"river":"Ume","year":7}'), _result()),
    "reasoning": (_USER, {**_call(), "reasoning": "Look it up."}, _result()),
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "level",
        "description": "The level of a river.",
        "parameters": {
            "type": "object",
            "properties": {"river": {"type": "string"}, "year": {"type": "integer"}},
        },
    },
}


async def probe_fields(
    renderer: Renderer, model: str, *, fields: Mapping[str, Any] | None = None
) -> FieldRules:
    """Find out which fields a template renders, by rendering small prompts in pairs.

    A pair that cannot be rendered leaves its field unknown. Never raises.

    Args:
        renderer: Any renderer; one that only serialises the wire form proves nothing, so its
            answer is that nothing is known.
        model: The served model's name.
        fields: The request's prompt fields, such as `chat_template_kwargs`.
    """
    if renderer.unit == "wire":
        return FieldRules()

    async def items(messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...] | str | None:
        prompt = Prompt(model=model, messages=tuple(messages), tools=(_TOOL,), fields=fields or {})
        try:
            return (await renderer.render(prompt)).items
        except Exception:
            return None

    plain = await items(_LOOP)
    if plain is None:
        return FieldRules()
    known: dict[str, bool] = {}
    for name, messages in _VARIANTS.items():
        rendered = await items(messages)
        if rendered is not None:
            known[name] = rendered != plain
    return FieldRules(**known)
