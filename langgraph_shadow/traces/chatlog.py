"""Logs of a chat-completions endpoint: each record a request with its response."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.traces.messages import UnknownPromptError, decoded, langchain_messages
from langgraph_shadow.traces.reader import (
    Name,
    Seconds,
    TracedRequest,
    UnknownRequest,
    first_problem,
)
from langgraph_shadow.traces.records import Record
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey, canonical
from langgraph_shadow.trunk.wire import wire_request

_EXPECTED = "a logged request, as a JSON object with `request` (the body) and `response`"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="allow")

    request: Any
    response: Any = None
    thread_id: Name = ""
    session_id: Name = ""
    namespace: Name = ""
    node: Name = ""
    time: Seconds = Field(default=None)
    timestamp: Seconds = Field(default=None)


def chat_requests(path: str, records: list[Record]) -> list[TracedRequest | UnknownRequest]:
    """The requests of a log.

    A log seldom names its conversations; then requests with the same first user message are one.

    Raises:
        TraceFormatError: A record is no logged request.
    """
    found: list[TracedRequest | UnknownRequest] = []
    for index, record in enumerate(records):
        try:
            entry = _Entry.model_validate(record.value)
        except ValidationError as error:
            raise TraceFormatError(
                path, record.line, found=first_problem(error), expected=_EXPECTED
            ) from error
        when = entry.time if entry.time is not None else entry.timestamp
        thread = entry.thread_id or entry.session_id
        try:
            body = _body(entry.request)
            messages = langchain_messages(body.get("messages"))
        except UnknownPromptError as error:
            key = TrunkKey(thread, entry.namespace, entry.node)
            found.append(UnknownRequest(index, record.line, key, str(error), when))
            continue
        request = wire_request(body)
        thread = thread or str(body.get("session_id") or "") or _conversation(messages)
        trunk = Trunk.build(
            key=TrunkKey(thread, entry.namespace, entry.node),
            model=request.model,
            messages=messages,
            tools=request.tools,
            fields=request.fields,
        )
        usage = _usage(entry.response)
        found.append(TracedRequest(index, record.line, trunk, when, usage))
    return found


def _body(value: object) -> Mapping[str, Any]:
    """The body itself, or the one inside a request with method, address and headers."""
    held = decoded(value)
    if isinstance(held, dict) and "messages" not in held and "body" in held:
        held = decoded(held["body"])
    return held if isinstance(held, dict) else {}


def _usage(value: object) -> Mapping[str, Any] | None:
    """The usage of a response, or of the last chunk of a streamed one."""
    try:
        held = decoded(value)
        if isinstance(held, dict) and "usage" not in held and "body" in held:
            held = decoded(held["body"])
    except UnknownPromptError:
        return None
    for chunk in reversed(held if isinstance(held, list) else [held]):
        usage = chunk.get("usage") if isinstance(chunk, dict) else None
        if isinstance(usage, dict):
            return usage
    return None


def _conversation(messages: tuple[Message, ...]) -> str:
    """A name for the conversation that these messages belong to, the same for each of its calls."""
    first = next((m for m in messages if m["role"] == "user"), messages[0])
    name = hashlib.blake2b(canonical(first.get("content")), digest_size=4).hexdigest()
    return f"conversation {name}"
