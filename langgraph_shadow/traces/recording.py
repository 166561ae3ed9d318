"""A recorded run of any known format, told apart by its first record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.traces.chatlog import chat_requests
from langgraph_shadow.traces.langsmith import langsmith_requests
from langgraph_shadow.traces.otel import otel_requests
from langgraph_shadow.traces.reader import (
    TracedRequest,
    UnknownRequest,
    body_requests,
    in_order,
)
from langgraph_shadow.traces.records import Record, read_records

if TYPE_CHECKING:
    from pathlib import Path

Format = Literal["requests", "langsmith", "otel", "chat"]
"""`requests`: request bodies; `langsmith`: runs; `otel`: spans; `chat`: requests with responses."""

_EXPECTED = (
    "a request body (`messages`), a LangSmith run (`run_type`), an OpenTelemetry span "
    "(`attributes` or `resourceSpans`) or a logged request (`request`)"
)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run.

    Attributes:
        format: What the file holds.
        requests: The model calls whose prompts are known, in the order they were sent.
        unknown: Those whose prompts the file does not hold.
    """

    format: Format
    requests: tuple[TracedRequest, ...]
    unknown: tuple[UnknownRequest, ...] = ()


def read_recording(path: str | Path) -> Recording:
    """Read request bodies, a LangSmith export, OpenTelemetry spans or a chat-completions log.

    Raises:
        TraceFormatError: With the line, and what should have been there.
    """
    name, records = str(path), read_records(path)
    if not records:
        raise TraceFormatError(name, 0, found="no request in it", expected=_EXPECTED)
    kind = _kind(records[0])
    if kind is None:
        found = "a record of no known format"
        raise TraceFormatError(name, records[0].line, found=found, expected=_EXPECTED)
    calls = _calls(kind, name, records)
    if not calls:
        found, expected = "no model call in it", "the runs or spans of at least one model call"
        raise TraceFormatError(name, 0, found=found, expected=expected)
    requests = [call for call in calls if isinstance(call, TracedRequest)]
    unknown = tuple(call for call in calls if isinstance(call, UnknownRequest))
    return Recording(kind, tuple(in_order(requests)), unknown)


def _kind(record: Record) -> Format | None:
    value = record.value
    if not isinstance(value, dict):
        return None
    if "run_type" in value:
        return "langsmith"
    if "resourceSpans" in value or "attributes" in value:
        return "otel"
    if "request" in value:
        return "chat"
    return "requests" if "messages" in value else None


def _calls(
    kind: Format, name: str, records: list[Record]
) -> list[TracedRequest] | list[TracedRequest | UnknownRequest]:
    if kind == "langsmith":
        return langsmith_requests(name, records)
    if kind == "otel":
        return otel_requests(name, records)
    if kind == "chat":
        return chat_requests(name, records)
    return body_requests(name, records)
