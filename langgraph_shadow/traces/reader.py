"""Recorded requests, one JSON body per line, as trunks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.trunk.model import PROMPT_FIELDS, Trunk, TrunkKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


def _seconds(value: object) -> object:
    """Seconds from a number as it is, or from an ISO 8601 text."""
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value


def _text(value: object) -> object:
    return "" if value is None else str(value) if isinstance(value, int) else value


_Name = Annotated[str, BeforeValidator(_text)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str


class _Body(BaseModel):
    """A request body; what the prompt does not depend on is passed over."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: list[_Message] = Field(min_length=1)
    model: _Name = ""
    tools: list[dict[str, Any]] | None = None
    extra_body: dict[str, Any] | None = None
    thread_id: _Name = ""
    namespace: _Name = ""
    node: _Name = ""
    time: Annotated[float | None, BeforeValidator(_seconds)] = None
    usage: dict[str, Any] | None = None


def read_requests(path: str | Path) -> list[TracedRequest]:
    """Read a file of recorded requests.

    Each line is the body of one request, with optional `thread_id`, `namespace`, `node`, `time`
    (seconds or ISO 8601) and `usage`. Lines without `thread_id` are one thread. When every line
    has a time, the requests come in the order of their times, else in the order of the file.

    Raises:
        TraceFormatError: With the line, and what should have been there.
    """
    file = Path(path)
    requests = [_request(file, i, number, line) for i, (number, line) in enumerate(_lines(file))]
    if not requests:
        raise TraceFormatError(str(file), 0, found="no request in it", expected=_EXPECTED)
    if all(r.time is not None for r in requests):
        requests.sort(key=lambda r: r.time or 0.0)
    return requests


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        with file.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    found, expected = f"bytes that are not UTF-8 ({error.reason})", "UTF-8 text"
                    raise TraceFormatError(
                        str(file), number, found=found, expected=expected
                    ) from error
                if line.strip():
                    yield number, line
    except OSError as error:
        found = f"the file cannot be read ({error.strerror})"
        raise TraceFormatError(str(file), 0, found=found, expected="a readable file") from error


def _request(file: Path, index: int, number: int, line: str) -> TracedRequest:
    def fail(found: str, expected: str, cause: Exception) -> NoReturn:
        raise TraceFormatError(str(file), number, found=found, expected=expected) from cause

    try:
        body = json.loads(line)
        request = _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        fail(f"{where}: {first['msg']}", _EXPECTED, error)
    except json.JSONDecodeError as error:
        fail(f"no valid JSON ({error.msg} at column {error.colno})", _EXPECTED, error)
    except (ValueError, RecursionError) as error:
        fail(f"JSON that cannot be read ({type(error).__name__})", _EXPECTED, error)
    flat = {**body, **(request.extra_body or {})}
    trunk = Trunk.build(
        key=TrunkKey(thread=request.thread_id, namespace=request.namespace, node=request.node),
        model=request.model,
        messages=body["messages"],
        tools=request.tools or (),
        fields={name: flat.get(name) for name in PROMPT_FIELDS},
    )
    return TracedRequest(index, number, trunk, request.time, request.usage)
