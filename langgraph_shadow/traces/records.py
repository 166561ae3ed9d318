"""The JSON records of a file, each with the line that it begins on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph_shadow.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXPECTED = "JSON: one record per line, an array of records, or one document"
_CONTAINERS = ("runs", "spans", "requests", "data")
"""Names under which a document holds its records."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        line: Its line in the file, counted from 1.
        value: What JSON made of it.
    """

    line: int
    value: Any


def read_records(path: str | Path) -> list[Record]:
    """Read JSON lines, a JSON array, or one JSON document that may hold a list of records.

    Raises:
        TraceFormatError: With the line that could not be read.
    """
    file = Path(path)
    text = _text(file)
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        return []
    number, first = lines[0]
    if first.lstrip().startswith("[") and (len(lines) == 1 or not _is_json(first)):
        return list(_array(file, text))
    # A document that is printed over many lines; its second line begins no record of its own.
    if len(lines) > 1 and not _is_json(first) and not lines[1][1].lstrip().startswith("{"):
        return _opened(Record(number, _parsed(file, text, 0)))
    if len(lines) == 1:
        return _opened(Record(number, _parsed(file, first, number)))
    return [Record(i, _parsed(file, line, i)) for i, line in lines]


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as error:
        found = f"the file cannot be read ({error.strerror})"
        raise TraceFormatError(str(file), 0, found=found, expected="a readable file") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        found = f"bytes that are not UTF-8 ({error.reason})"
        raise TraceFormatError(str(file), line, found=found, expected="UTF-8 text") from error


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(file: Path, text: str, line: int) -> Any:
    """The value of a text that is line `line`, or (0) the whole file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        found = f"no valid JSON ({error.msg} at column {error.colno})"
        raise TraceFormatError(
            str(file), line or error.lineno, found=found, expected=_EXPECTED
        ) from error
    except (ValueError, RecursionError) as error:
        found = f"JSON that cannot be read ({type(error).__name__})"
        raise TraceFormatError(str(file), line, found=found, expected=_EXPECTED) from error


def _array(file: Path, text: str) -> Iterator[Record]:
    """The elements of an array, decoded one by one, so that each has its line."""
    decoder = json.JSONDecoder()
    at = _skip(text, text.index("[") + 1)
    line, counted = 1, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            found = f"no valid JSON ({getattr(error, 'msg', type(error).__name__)})"
            where = getattr(error, "lineno", line)
            raise TraceFormatError(str(file), where, found=found, expected=_EXPECTED) from error
        yield Record(line, value)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            line += text.count("\n", counted, at)
            found = "an array that is not closed"
            raise TraceFormatError(str(file), line, found=found, expected=_EXPECTED)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _opened(record: Record) -> list[Record]:
    """The records that a document holds, or the document itself."""
    if isinstance(record.value, dict) and not record.value.keys() & {"messages", "run_type"}:
        for name in _CONTAINERS:
            held = record.value.get(name)
            if isinstance(held, list) and held:
                return [Record(record.line, value) for value in held]
    return [record]
