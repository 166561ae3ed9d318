"""A wire message as the parts of it that reach the prompt: `(field, text)` pairs, in order."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph_shadow.trunk.model import canonical

if TYPE_CHECKING:
    from langgraph_shadow.guard.fields import FieldRules

Parts: TypeAlias = tuple[tuple[str, str], ...]
"""Equal parts mean an equal prompt, as far as the rules know."""

REASONING = "reasoning"
ARGUMENTS = ".function.arguments"


def message_parts(message: object, rules: FieldRules) -> Parts:
    """The parts of one message. What vLLM does not hand to the template is left out.

    vLLM 0.32 passes role, content, reasoning, tool calls, tool call id, name, task and a developer
    message's tools, and nothing else: no message id, no status.
    """
    if not isinstance(message, Mapping):
        return (("", text_of(message)),)
    return tuple(_message_parts(message, rules))


def tool_parts(tool: object) -> Parts:
    """The parts of one tool schema; vLLM fixes the order of the outer keys, not of `parameters`."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return (("", text_of(tool)),)
    return tuple(
        (f"function.{name}", text_of(function[name]))
        for name in ("name", "description", "parameters", "strict")
        if function.get(name) is not None
    )


def text_of(value: object) -> str:
    """A string as it is, anything else as JSON with its key order kept."""
    return value if isinstance(value, str) else canonical(value).decode("utf-8", "surrogatepass")


def sorted_json(text: str) -> str | None:
    """A JSON text with its keys sorted and its spacing dropped, or None when it is no JSON."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _message_parts(message: Mapping[str, Any], rules: FieldRules) -> Iterator[tuple[str, str]]:
    role = message.get("role")
    yield "role", text_of(role)
    # A tool result's name is not on LangChain's wire, so unknown means not rendered.
    if message.get("name") is not None and (
        rules.names or (rules.names is None and role != "tool")
    ):
        yield "name", text_of(message["name"])
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning and rules.reasoning is not False:
        yield REASONING, text_of(reasoning)
    yield from _content_parts(message.get("content"), rules)
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        for i, call in enumerate(calls):
            yield from _call_parts(f"tool_calls[{i}]", call, rules)
    elif calls:
        yield "tool_calls", text_of(calls)
    if message.get("tool_call_id") is not None and rules.ids is not False:
        yield "tool_call_id", text_of(message["tool_call_id"])
    for name in ("task", "tools"):
        if message.get(name):
            yield name, text_of(message[name])


def _content_parts(content: object, rules: FieldRules) -> Iterator[tuple[str, str]]:
    if content is None:
        if not rules.null_content:
            yield "content", ""
    elif not isinstance(content, list | tuple):
        yield "content", text_of(content)
    elif not rules.text_parts and all(_text_part(part) is not None for part in content):
        yield "content", "\n".join(str(_text_part(part)) for part in content)
    else:
        for i, part in enumerate(content):
            text = _text_part(part)
            yield (
                (f"content[{i}].text", text)
                if text is not None
                else (f"content[{i}]", text_of(part))
            )


def _text_part(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ):
        return str(part["text"])
    return None


def _call_parts(path: str, call: object, rules: FieldRules) -> Iterator[tuple[str, str]]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        yield path, text_of(call)
        return
    if call.get("id") is not None and rules.ids is not False:
        yield f"{path}.id", text_of(call["id"])
    yield f"{path}.function.name", text_of(function.get("name"))
    arguments = text_of(function.get("arguments"))
    if rules.argument_text is False:
        with contextlib.suppress(ValueError, RecursionError):
            arguments = text_of(json.loads(arguments))
    yield path + ARGUMENTS, arguments
