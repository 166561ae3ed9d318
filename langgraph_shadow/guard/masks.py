"""Clocks and identifiers in a text: where they are, and whether two texts differ only in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from langgraph_shadow.alignment.blocks import common_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

Volatile = Literal["clock", "identifier"]

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[ECMP][SD]T|CES?T|[+-]\d{2}:?\d{2})(?!\w))?"
_NOON = r"[AaPp](?:[Mm]\b|\.[Mm]\.)"
_TIME = rf"\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d{{1,9}})?)?(?:\s?{_NOON})?{_ZONE}"
_CLOCK_ATOMS = (
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[T ]{_TIME})?",
    r"20\d{6}(?:T?\d{6}Z?)?",
    r"\d{1,2}[/.-]\d{1,2}[/.-](?:\d{4}|\d{2})",
    _TIME,
    rf"\d{{1,2}}\s?{_NOON}",
    rf"\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?{_MONTH}\b\.?(?:,?\s\d{{4}})?",
    rf"{_MONTH}\b\.?\s\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s\d{{4}})?",
    rf"{_MONTH}\b\.?\s\d{{4}}",
    # Any language's long date: "12 juin 2026", "3 de mayo de 2026", "21. Juli 2026".
    r"\d{1,2}\.?\s(?:de\s)?[^\W\d_]{3,12}\.?\s(?:de\s)?\d{4}",
    r"\d{4}年\d{1,2}月\d{1,2}日",
    r"(?:Mon|Tue|Tues|Wed|Wednes|Thu|Thurs|Fri|Sat|Satur|Sun)(?:day)?\b",
    r"1\d{9}(?:\d{3}|\d{6}|\d{9})?(?:\.\d{1,9})?",
    r"\d{1,9}(?:\.\d{1,6})?\s?(?:ms|s|sec|seconds?|min|minutes?|h|hours?|days?)\s(?:ago|elapsed)\b",
)
_ATOM = rf"(?:{'|'.join(_CLOCK_ATOMS)})(?![A-Za-z0-9_])"
_GAP = r"(?:,?\s(?:at\s)?|T|\s[-–|]\s)"
_CLOCK = rf"(?<![A-Za-z0-9_.]){_ATOM}(?:{_GAP}{_ATOM}){{0,4}}"
_KEYED = (
    r"(?:(?i:X-Amz-[a-z-]{1,30}|signature|sig|expires|token|nonce|etag|hash|secret)"
    r"=[^&\s\"'<>]{4,200}"
    r"|(?i:\b(?:id|request|req|session|trace|run|thread|conversation|correlation|span))"
    r"[\s_:=#-]{1,3}\d{3,}(?![A-Za-z0-9_-]))"
)
_TOKEN = r"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9_-]{5,255}+(?![A-Za-z0-9_-])"
_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_VOLATILE = re.compile(
    rf"(?P<uuid>{_UUID})|(?P<clock>{_CLOCK})|(?P<keyed>{_KEYED})|(?P<token>{_TOKEN})"
)

_CONTEXT = 64
"""Characters kept around a difference, so that a pattern it cuts through is seen whole."""
_MAX_SPAN = 50_000
"""A longer difference is not a clock or an identifier; bounds the work (characters)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One clock or identifier that differs between two otherwise equal texts."""

    kind: Volatile
    before: str
    after: str


def difference(before: str, after: str) -> tuple[int, int]:
    """Characters of common prefix, and of common suffix after it, of two texts."""
    head = common_prefix(before, after)
    tail = common_prefix(before[head:][::-1], after[head:][::-1])
    return head, tail


def volatile_changes(before: str, after: str) -> tuple[Change, ...] | None:
    """The clocks and identifiers that changed, or None when anything else differs as well.

    Equal texts give an empty tuple. Only the stretch between the first and the last difference
    (and a little around it) is read, so a long text costs little.
    """
    if before == after:
        return ()
    head, tail = difference(before, after)
    start, rest = max(0, head - _CONTEXT), max(0, tail - _CONTEXT)
    old, new = before[start : len(before) - rest], after[start : len(after) - rest]
    if max(len(old), len(new)) > _MAX_SPAN:
        return None
    changes = []
    old_pieces, new_pieces = list(_pieces(old)), list(_pieces(new))
    if len(old_pieces) != len(new_pieces):
        return None
    for (kind, text), (other, fresh) in zip(old_pieces, new_pieces, strict=True):
        if text == fresh and kind == other:
            continue
        if kind is None or kind != other:
            return None
        changes.append(Change(kind, text, fresh))
    return tuple(changes)


def _pieces(text: str) -> Iterator[tuple[Volatile | None, str]]:
    """Cut a text into clocks, identifiers and what lies between."""
    at = 0
    for match in _VOLATILE.finditer(text):
        kind: Volatile = "clock" if match["clock"] else "identifier"
        if match["token"] and not _looks_random(match["token"]):
            continue
        yield None, text[at : match.start()]
        yield kind, match[0]
        at = match.end()
    yield None, text[at:]


def _looks_random(token: str) -> bool:
    """Whether a part of the word mixes letters and digits, or cases, as generated ids do."""
    return any(
        (len(part) >= 6 and not part.isdigit() and sum(c.isdigit() for c in part) >= 2)
        or (len(part) >= 12 and sum(x.islower() != y.islower() for x, y in pairwise(part)) >= 5)
        or (len(part) >= 5 and part.isdigit() and part != token)
        for part in re.split(r"[-_]", token)
    )
