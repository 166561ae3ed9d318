"""What kind of break this is, where it starts and what to do about it. Pure; never raises."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.alignment.blocks import common_prefix
from langgraph_shadow.guard.fields import FieldRules
from langgraph_shadow.guard.masks import difference, volatile_changes
from langgraph_shadow.guard.parts import (
    ARGUMENTS,
    REASONING,
    Parts,
    message_parts,
    sorted_json,
    text_of,
    tool_parts,
)
from langgraph_shadow.guard.report import REPAIRS, Kind, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_shadow.trunk.model import Trunk

IN_PLACE: frozenset[Kind] = frozenset({"clock", "identifier", "serialisation", "reasoning"})
"""Kinds in which the new message is the old one, written differently."""

STRUCTURAL: frozenset[Kind] = frozenset({"inserted", "removed", "reordered", "summarised"})
"""Kinds in which the list of messages changed, so that no field and character can be named."""

ISOLATION_FIELDS = ("cache_salt", "lora_request")
TAIL_FIELDS = ("add_generation_prompt", "continue_final_message")
"""Fields that change only the end of the prompt, so never a break."""

_EXCERPT = 40
_WORD = 12
_MAX_FOLD = 200_000
_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>\s*", re.DOTALL)
_SUMMARY = re.compile(
    r"summar(?:y|i[sz]ed|i[sz]ing)|conversation so far|previous conversation|compacted|condensed",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Where two trunks part, and how.

    Attributes:
        kind: The kind of mutation.
        path: The field in which they part.
        before: That field's old text.
        after: Its new text.
        index: The message in which they part; None when it is before the messages.
        resumes: Whether old messages after that point are there in the new trunk as well.
        summary: Whether the new message reads like a summary.
    """

    kind: Kind
    path: str
    before: str
    after: str
    index: int | None = None
    resumes: bool = False
    summary: bool = False


def diagnose(before: Trunk, after: Trunk, rules: FieldRules | None = None) -> Report | None:
    """Compare two successive trunks of one line.

    Args:
        before: The trunk sent before.
        after: The trunk about to be sent.
        rules: Which fields reach the prompt; unknown ones fall back on the rules' defaults.

    Returns:
        None when `after` extends `before`, is a prefix of it, or differs only in what does not
        reach the prompt.
    """
    finding = compare(before, after, rules)
    return None if finding is None else report_of(finding, before)


def compare(before: Trunk, after: Trunk, rules: FieldRules | None = None) -> Finding | None:
    """Find where two trunks part; `diagnose` without the report's excerpts and sums."""
    try:
        return _head(before, after) or _messages(before, after, rules or FieldRules())
    except Exception:
        # A message no serialiser would write; the graph must not feel it (design §5).
        return Finding("unknown", "messages", "", "")


def report_of(finding: Finding, before: Trunk) -> Report:
    """The report of a finding: excerpts of the differing span only, and the share that is lost."""
    head, tail = difference(finding.before, finding.after)
    offset = 0 if finding.kind in STRUCTURAL else head
    return Report(
        key=before.key,
        kind=finding.kind,
        path=finding.path,
        offset=offset,
        before=_excerpt(finding.before, head, tail),
        after=_excerpt(finding.after, head, tail),
        repair=REPAIRS[finding.kind],
        lost_share=_lost_share(finding, before, offset),
    )


def _head(before: Trunk, after: Trunk) -> Finding | None:
    if before.digests[:1] == after.digests[:1]:
        return None
    if before.model != after.model:
        return Finding("isolation", "model", before.model, after.model)
    for name in ISOLATION_FIELDS:
        if (found := _field(name, before, after)) is not None:
            return Finding("isolation", *found)
    for name in sorted({*before.fields, *after.fields} - {*TAIL_FIELDS}):
        if (found := _field(name, before, after)) is not None:
            return Finding("request_field", *found)
    return _tools(before.tools, after.tools)


def _field(name: str, before: Trunk, after: Trunk) -> tuple[str, str, str] | None:
    old, new = before.fields.get(name), after.fields.get(name)
    if old == new or (not old and not new and False not in (old, new)):
        return None
    return name, _field_text(old), _field_text(new)


def _field_text(value: object) -> str:
    return "" if value is None else text_of(value)


def _tools(old: Sequence[Any], new: Sequence[Any]) -> Finding | None:
    b, a = [tool_parts(t) for t in old], [tool_parts(t) for t in new]
    if b == a:
        return None
    at = common_prefix(b, a)
    path = f"tools[{at}]"
    if len(b) != len(a) or Counter(b) == Counter(a):
        return Finding("tools", path, _tool_name(b, at), _tool_name(a, at))
    kinds = [_in_place(x, y) for x, y in zip(b[at:], a[at:], strict=True) if x != y]
    label, x, y = _first_difference(b[at], a[at])
    kind: Kind = "tools" if None in kinds else kinds[0] or "tools"
    return Finding(kind, f"{path}.{label}" if label else path, x, y)


def _tool_name(tools: Sequence[Parts], at: int) -> str:
    return tools[at][0][1] if at < len(tools) and tools[at] else ""


def _messages(before: Trunk, after: Trunk, rules: FieldRules) -> Finding | None:
    start = max(0, common_prefix(before.digests, after.digests) - 1)
    rest = before.messages[start + 1 :]
    if rest and rest == after.messages[start + 1 : len(before.messages)]:
        return _one_message(start, before, after, rules)
    old = [message_parts(m, rules) for m in before.messages[start:]]
    new = [message_parts(m, rules) for m in after.messages[start:]]
    same = common_prefix(old, new)
    if same == len(old) or same == len(new):
        return None
    old, new, index = old[same:], new[same:], start + same
    kind = _rewritten(before.messages[index], after.messages[index], old, new)
    kind = kind or _structure(old, new)
    path = f"messages[{index}]"
    if kind in STRUCTURAL:
        x, y = _content(old[0]), _content(new[0])
    else:
        label, x, y = _first_difference(old[0], new[0])
        path = f"{path}.{label}" if label else path
    present = set(new)
    return Finding(
        kind,
        path,
        x,
        y,
        index=index,
        resumes=any(parts in present for parts in old),
        summary=_is_summary(new[0]) and not _is_summary(old[0]),
    )


def _one_message(index: int, before: Trunk, after: Trunk, rules: FieldRules) -> Finding | None:
    """The finding when one message differs and all old ones after it are there, in place."""
    pair = before.messages[index], after.messages[index]
    old, new = (message_parts(message, rules) for message in pair)
    if old == new:
        return None
    label, x, y = _first_difference(old, new)
    path = f"messages[{index}].{label}" if label else f"messages[{index}]"
    kind = _rewritten(*pair, [old], [new]) or "edited"
    return Finding(kind, path, x, y, index=index, resumes=True)


def _rewritten(
    before: object, after: object, old: Sequence[Parts], new: Sequence[Parts]
) -> Kind | None:
    """The kind of the first message that differs, when it is the old one written differently."""
    if old[0] in set(new) or new[0] in set(old):
        return None
    if message_parts(before, FieldRules()) == message_parts(after, FieldRules()):
        return "serialisation"
    return _in_place(old[0], new[0])


def _structure(old: Sequence[Parts], new: Sequence[Parts]) -> Kind:
    """What happened to the list of messages, from the first difference on; linear."""
    first: dict[Parts, int] = {}
    for i, parts in enumerate(new):
        first.setdefault(parts, i)
    if not Counter(old) - Counter(new):
        rest = iter(new)
        return "inserted" if all(parts in rest for parts in old) else "reordered"
    if old[0] in first:
        return "reordered" if new[0] in set(old) else "inserted"
    kept = next((i for i, parts in enumerate(old) if parts in first), None)
    if kept is not None:
        added = first[old[kept]]
        if added == 0:
            return "removed"
        return "summarised" if added < kept else "edited"
    if len(new) < len(old) or (len(old) > 1 and _is_summary(new[0])):
        return "summarised"
    return "edited" if _same_slot(old[0], new[0]) else "removed"


def _same_slot(old: Parts, new: Parts) -> bool:
    b, a = dict(old), dict(new)
    if b.get("role") != a.get("role"):
        return old[1:] == new[1:]
    return (
        b.get("role") != "tool"
        or b.get("content") == a.get("content")
        or b.get("tool_call_id") == a.get("tool_call_id")
    )


def _in_place(old: Parts, new: Parts) -> Kind | None:
    """The kind of a message or tool that is the old one, written differently; else None."""
    b, a = dict(old), dict(new)
    kinds: list[Kind | None] = [
        _same_field(label, b.get(label), a.get(label))
        for label in dict.fromkeys((*b, *a))
        if b.get(label) != a.get(label)
    ]
    # Several fields at once count only when each of them is such a change.
    return None if None in kinds or not kinds else kinds[0]


def _same_field(label: str, old: str | None, new: str | None) -> Kind | None:
    if label == REASONING:
        return "reasoning"
    if old is None or new is None:
        return None
    if label.endswith(".id") or label == "tool_call_id":
        return "identifier"
    if label.endswith((ARGUMENTS, ".parameters")):
        parsed = sorted_json(old)
        if parsed is not None and parsed == sorted_json(new):
            return "serialisation"
    if _fold(old) == _fold(new):
        return "serialisation"
    if label == "content" and _THINKING.sub("", old).strip() == _THINKING.sub("", new).strip():
        return "reasoning"
    changes = volatile_changes(old, new)
    return changes[0].kind if changes else None


def _fold(text: str) -> str:
    """The text without what an editor or a serialiser changes: spacing and Unicode form."""
    if len(text) > _MAX_FOLD:
        return text.strip()
    return " ".join(unicodedata.normalize("NFC", text).split())


def _first_difference(old: Parts, new: Parts) -> tuple[str, str, str]:
    at = common_prefix(old, new)
    old_label, x = old[at] if at < len(old) else ("", "")
    new_label, y = new[at] if at < len(new) else ("", "")
    if old_label == new_label:
        return old_label, x, y
    # One side has a field more here: the one that the other side lacks altogether.
    if new_label and new_label not in dict(old):
        return new_label, "", y
    return old_label, x, ""


def _content(parts: Parts) -> str:
    return next((text for label, text in parts if label.startswith("content") and text), "") or (
        parts[-1][1] if parts else ""
    )


def _is_summary(parts: Parts) -> bool:
    return _SUMMARY.search(_content(parts)[:300]) is not None


def _excerpt(text: str, head: int, tail: int) -> str:
    """The differing span, widened to whole words, and cut short."""
    start, end = head, len(text) - tail
    while start > max(0, head - _WORD) and not text[start - 1].isspace():
        start -= 1
    while end < min(len(text), len(text) - tail + _WORD) and not text[end].isspace():
        end += 1
    span = text[start:end]
    return span if len(span) <= _EXCERPT else span[:_EXCERPT] + "…"


def _lost_share(finding: Finding, before: Trunk, offset: int) -> float:
    """Share of the old trunk's characters from the break on; system text first, then tools."""
    if finding.kind in ("isolation", "request_field", "unknown"):
        return 1.0
    sizes = [_size(m) for m in before.messages]
    tools = sum(len(text) for t in before.tools for _, text in tool_parts(t))
    total = sum(sizes) + tools
    if not total:
        return 1.0
    if finding.index is None:
        kept = sizes[0] if sizes and _role(before.messages[0]) == "system" else 0
    else:
        kept = sum(sizes[: finding.index]) + offset + (tools if finding.index else 0)
    return max(0.0, min(1.0, 1 - kept / total))


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _size(message: object) -> int:
    """Characters of a message, roughly; strings are not copied to count them."""
    if not isinstance(message, dict):
        return len(text_of(message))
    content, calls = message.get("content"), message.get("tool_calls")
    size = len(content) if isinstance(content, str) else len(text_of(content or ""))
    return size + (len(text_of(calls)) if calls else 0)
