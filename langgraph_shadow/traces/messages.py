"""Recorded messages, in whatever form a tracer wrote them, as wire messages."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langgraph_shadow.trunk.model import Message
from langgraph_shadow.trunk.wire import wire_messages

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI


class UnknownPromptError(Exception):
    """A recording does not hold the prompt of a model call; the text says why."""


_HIDDEN = re.compile(
    r"^\W*(redacted|hidden|masked|scrubbed|filtered)\W*$|^\s*[*█]{3,}\s*$|[\[<{(]redacted\b",
    re.IGNORECASE,
)
"""What redaction leaves behind. Words that compaction uses too (`cleared`, `removed`,
`truncated`) are not here: those prompts were really sent so."""


def decoded(value: object) -> Any:
    """A value that a tracer may have written as JSON text.

    Raises:
        UnknownPromptError: It is text, and no JSON: exporters cut long attributes short.
    """
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        msg = "its text is no valid JSON, as when an exporter cuts it short"
        raise UnknownPromptError(msg) from error


def langchain_messages(value: object) -> tuple[Message, ...]:
    """LangChain's `inputs.messages`, or OpenAI's, in wire form.

    LangChain's are serialised by its own OpenAI client, which gives the recorded request exactly
    (facts/langgraph.md §6).

    Raises:
        UnknownPromptError: They are missing, hidden, or of no known form.
    """
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]  # LangChain records a batch of prompts, of which a chat model has one
    if not isinstance(value, list) or not value:
        msg = "its input messages are not in the recording (hidden or left out)"
        raise UnknownPromptError(msg)
    if all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value):
        messages = tuple(value)
    else:
        messages = wire_messages(serialiser(), [_loaded(m) for m in value])
    _refuse_hidden(messages)
    return messages


def genai_messages(value: object, instructions: object = None) -> tuple[Message, ...]:
    """OpenTelemetry's `gen_ai.input.messages` and `gen_ai.system_instructions` in wire form.

    Raises:
        UnknownPromptError: They are missing, hidden, or of no known form.
    """
    if not isinstance(value, list) or not value:
        msg = "its span holds no messages (content capture was off)"
        raise UnknownPromptError(msg)
    messages: list[Message] = []
    if isinstance(instructions, list) and instructions:
        messages.append({"role": "system", "content": _content(instructions)})
    for item in value:
        parts = item.get("parts") if isinstance(item, dict) else None
        if not isinstance(parts, list) or not isinstance(item.get("role"), str):
            msg = "a message in it has no role and parts"
            raise UnknownPromptError(msg)
        messages.extend(_from_parts(item["role"], parts))
    _refuse_hidden(messages)
    return tuple(messages)


def _from_parts(role: str, parts: Sequence[Any]) -> list[Message]:
    held = [p for p in parts if isinstance(p, dict)]
    results: list[Message] = [
        {
            "role": "tool",
            "tool_call_id": str(p.get("id") or ""),
            "content": _as_text(p.get("response", p.get("result"))),
        }
        for p in held
        if p.get("type") == "tool_call_response"
    ]
    calls = [
        {
            "id": str(p.get("id") or ""),
            "type": "function",
            "function": {"name": p.get("name"), "arguments": _as_text(p.get("arguments"))},
        }
        for p in held
        if p.get("type") == "tool_call"
    ]
    kinds = ("tool_call_response", "tool_call", "reasoning")
    rest = [p for p in held if p.get("type") not in kinds]
    reasoning = "".join(_as_text(p.get("content")) for p in held if p.get("type") == "reasoning")
    if results and not rest and not calls:
        return results
    message: dict[str, Any] = {"role": role, "content": _content(rest)}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return [*results, message]


def _content(parts: Sequence[Any]) -> Any:
    held = [p.get("content") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    texts = [text for text in held if isinstance(text, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)  # only compared with one another, never sent
    return list(parts)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _loaded(message: object) -> BaseMessage:
    from langchain_core.load import load
    from langchain_core.messages import BaseMessage, convert_to_messages, messages_from_dict

    try:
        if isinstance(message, dict) and "lc" in message:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `load` is marked beta, and says so each time
                loaded = load(message, allowed_objects="messages")
        elif isinstance(message, dict) and isinstance(message.get("data"), dict):
            (loaded,) = messages_from_dict([message])
        else:
            (loaded,) = convert_to_messages([message])  # type: ignore[list-item]
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        msg = f"a message in it is of no known form ({type(error).__name__})"
        raise UnknownPromptError(msg) from error
    if not isinstance(loaded, BaseMessage):
        msg = f"a message in it is of no known form ({type(loaded).__name__})"
        raise UnknownPromptError(msg)
    return loaded


@functools.cache
def serialiser() -> BaseChatOpenAI:
    """A model that is only asked how it would put messages on the wire."""
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    return ChatOpenAI(
        model="-", base_url="http://127.0.0.1:9/v1", api_key=SecretStr("-"), use_responses_api=False
    )


def _refuse_hidden(messages: Sequence[Message]) -> None:
    for i, message in enumerate(messages):
        content = message.get("content")
        texts = [content] if isinstance(content, str) else _texts(content)
        if any(_HIDDEN.search(text) for text in texts):
            msg = f"the content of messages[{i}] is redacted"
            raise UnknownPromptError(msg)


def _texts(content: object) -> list[str]:
    parts = content if isinstance(content, list) else []
    return [p["text"] for p in parts if isinstance(p, Mapping) and isinstance(p.get("text"), str)]
