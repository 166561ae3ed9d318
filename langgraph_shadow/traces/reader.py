"""Recorded requests, one JSON body per line, as trunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.traces.records import Record, read_records
from langgraph_shadow.trunk.model import PROMPT_FIELDS, Trunk, TrunkKey

if TYPE_CHECKING:
    from pathlib import Path

_EXPECTED = "one chat-completions request body per line, as a JSON object with `messages`"


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a recorded run.

    Attributes:
        index: Its place in the file, counted from 0, empty lines left out.
        line: Its line in the file, counted from 1.
        trunk: What was sent.
        time: When it was sent, in seconds since 1970; None when not recorded.
        usage: The server's usage object; None when not recorded.
    """

    index: int
    line: int
    trunk: Trunk
    time: float | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, as the server counted them; None when not recorded."""
        usage = self.usage or {}
        return _count(usage, "prompt_tokens") or _count(usage, "input_tokens")

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the server took from its cache; None when not recorded."""
        usage = self.usage or {}
        for details, name in _CACHED:
            held = usage.get(details)
            count = _count(held, name) if isinstance(held, Mapping) else None
            if count is not None:
                return count
        return _count(usage, "cache_read_input_tokens")


_CACHED = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_token_details", "cache_read"),
    ("input_tokens_details", "cached_tokens"),
)
"""Where OpenAI's two APIs and LangChain keep the count."""


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return int(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class UnknownRequest:
    """A recorded model call whose prompt the recording does not hold.

    Attributes:
        index: Its place among the model calls of the file, counted from 0.
        line: Its line in the file, counted from 1.
        key: The line of model calls that it belongs to.
        reason: Why its prompt is unknown.
        time: When it was sent, in seconds since 1970; None when not recorded.
    """

    index: int
    line: int
    key: TrunkKey
    reason: str
    time: float | None = None


def seconds(value: object) -> object:
    """Seconds from a number as it is, or from an ISO 8601 text."""
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value


def _text(value: object) -> object:
    return "" if value is None else str(value) if isinstance(value, int) else value


Name = Annotated[str, BeforeValidator(_text)]
Seconds = Annotated[float | None, BeforeValidator(seconds)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str


class _Body(BaseModel):
    """A request body; what the prompt does not depend on is passed over."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: list[_Message] = Field(min_length=1)
    model: Name = ""
    tools: list[dict[str, Any]] | None = None
    extra_body: dict[str, Any] | None = None
    thread_id: Name = ""
    namespace: Name = ""
    node: Name = ""
    time: Seconds = None
    usage: dict[str, Any] | None = None


def read_requests(path: str | Path) -> list[TracedRequest]:
    """Read a file of recorded requests.

    Each line is the body of one request, with optional `thread_id`, `namespace`, `node`, `time`
    (seconds or ISO 8601) and `usage`. Lines without `thread_id` are one thread. When every line
    has a time, the requests come in the order of their times, else in the order of the file.

    Raises:
        TraceFormatError: With the line, and what should have been there.
    """
    requests = body_requests(str(path), read_records(path))
    if not requests:
        raise TraceFormatError(str(path), 0, found="no request in it", expected=_EXPECTED)
    return in_order(requests)


def body_requests(path: str, records: list[Record]) -> list[TracedRequest]:
    """Request bodies as trunks.

    Raises:
        TraceFormatError: A record is no request body.
    """
    return [_request(path, i, record) for i, record in enumerate(records)]


def in_order(requests: list[TracedRequest]) -> list[TracedRequest]:
    """The requests by time when all have one, else as they are."""
    if all(r.time is not None for r in requests):
        return sorted(requests, key=lambda r: r.time or 0.0)
    return requests


def first_problem(error: ValidationError) -> str:
    """What pydantic found wrong first, and where, without the value itself."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the line"
    return f"{where}: {first['msg']}"


def _request(path: str, index: int, record: Record) -> TracedRequest:
    body = record.value
    try:
        request = _Body.model_validate(body)
    except ValidationError as error:
        raise TraceFormatError(
            path, record.line, found=first_problem(error), expected=_EXPECTED
        ) from error
    flat = {**body, **(request.extra_body or {})}
    trunk = Trunk.build(
        key=TrunkKey(thread=request.thread_id, namespace=request.namespace, node=request.node),
        model=request.model,
        messages=body["messages"],
        tools=request.tools or (),
        fields={name: flat.get(name) for name in PROMPT_FIELDS},
    )
    return TracedRequest(index, record.line, trunk, request.time, request.usage)
