"""Repair: send the same prefix again where the new one says the same in other bytes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langgraph_shadow.guard.fields import FieldRules
from langgraph_shadow.guard.masks import Change, volatile_changes
from langgraph_shadow.guard.parts import ARGUMENTS, message_parts, sorted_json, text_of
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey, canonical

if TYPE_CHECKING:
    from langgraph_shadow.guard.report import Kind

_log = logging.getLogger("langgraph_shadow.guard")

_MAX_BRANCHES = 8
"""Branches of a line's session tree that are remembered: parallel runs and forks."""
_MAX_CALLS = 4096
"""Tool calls per thread whose own argument text is remembered."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that was mended in a trunk.

    Attributes:
        kind: The kind of break that it would have been.
        path: Where, for example `messages[0].content`.
        detail: What was done, one sentence.
    """

    kind: Kind
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Branch:
    """What was handed in and what was sent for it, message by message."""

    given: tuple[Message, ...]
    sent: Trunk
    # Where fresh values were put: index of the message, and the values.
    notes: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def announced(self, kept: int) -> tuple[str, ...]:
        return next((values for at, values in reversed(self.notes) if at < kept), ())


@dataclass(frozen=True, slots=True)
class _Match:
    """How far a trunk agrees with a branch, and what had to be looked past."""

    kept: int = 0
    repairs: tuple[Repair, ...] = ()
    changes: tuple[Change, ...] = ()


class Stabiliser:
    """Mends what can be mended safely, and nothing else. Thread-safe; never mutates its input.

    What was once sent is sent again in the same bytes; new text only ever goes to the end. What
    is left over is for the guard to report.
    """

    def __init__(self, *, max_lines: int = 1024) -> None:
        """Make a stabiliser that remembers `max_lines` lines (and as many threads)."""
        self._max = max(1, max_lines)
        self._lines: OrderedDict[TrunkKey, list[_Branch]] = OrderedDict()
        self._arguments: OrderedDict[str, OrderedDict[str, str]] = OrderedDict()
        self._lock = threading.Lock()

    def remember_arguments(self, thread: str, arguments: Mapping[str, str]) -> None:
        """Remember the model's own argument text by tool call id, to replay it."""
        with self._lock:
            known = self._arguments.setdefault(thread, OrderedDict())
            known.update(arguments)
            _shorten(known, _MAX_CALLS)
            self._arguments.move_to_end(thread)
            _shorten(self._arguments, self._max)

    def forget(self, thread: str) -> None:
        """Drop everything remembered about a thread."""
        with self._lock:
            self._arguments.pop(thread, None)
            for key in [k for k in self._lines if k.thread == thread]:
                del self._lines[key]

    def repair(self, trunk: Trunk) -> tuple[Trunk, tuple[Repair, ...]]:
        """Return the trunk to send, and what was mended in it.

        The same input gives the same trunk again. Each repair is reported when it is made; a
        value that is fresh on every call is reported on every call. Never raises: a trunk that
        cannot be read is returned as it is.
        """
        try:
            return self._repair(trunk)
        except Exception:
            _log.exception("the repair failed and let the request pass as it was")
            return trunk, ()

    def _repair(self, trunk: Trunk) -> tuple[Trunk, tuple[Repair, ...]]:
        messages, moved = _call_order(trunk.messages)
        with self._lock:
            branches = self._lines.setdefault(trunk.key, [])
            self._lines.move_to_end(trunk.key)
            _shorten(self._lines, self._max)
            branch, match = _best(branches, messages)
            sent, repairs, notes = self._mend(trunk, messages, branch, match)
            if branch is None or match.kept < len(messages):
                self._store(branches, branch, match.kept, _Branch(messages, sent, notes))
        return sent, (*repairs, *(r for i, r in moved if i >= match.kept))

    def _mend(
        self, trunk: Trunk, messages: tuple[Message, ...], branch: _Branch | None, match: _Match
    ) -> tuple[Trunk, tuple[Repair, ...], tuple[tuple[int, tuple[str, ...]], ...]]:
        kept = match.kept
        known: Mapping[str, str] = self._arguments.get(trunk.key.thread, {})
        fresh: list[Message] = []
        repairs = [*match.repairs]
        for i, message in enumerate(messages[kept:], kept):
            mended, done = _replay(i, message, known)
            fresh.append(mended)
            repairs.extend(done)
        if branch is None:
            return _rebuilt(trunk, trunk.tools, fresh), tuple(repairs), ()
        notes = tuple(n for n in branch.notes if n[0] < kept)
        values = tuple(change.after for change in match.changes)
        if values and values != branch.announced(kept):
            at = _add_note(fresh, match.changes)
            notes = notes if at is None else (*notes, (kept + at, values))
        tools, tool_repairs = _first_tools(branch.sent.tools, trunk.tools)
        repairs.extend(tool_repairs)
        before = branch.sent
        if tools is before.tools and trunk.model == before.model and trunk.fields == before.fields:
            sent = before.prefix(kept).extend(fresh, exact=trunk.exact)
        else:
            sent = _rebuilt(trunk, tools, [*before.messages[:kept], *fresh])
        return sent, tuple(repairs), notes

    @staticmethod
    def _store(branches: list[_Branch], base: _Branch | None, kept: int, branch: _Branch) -> None:
        if base is not None:
            # The first form of each message stays the one that later ones are compared with.
            branch = replace(branch, given=(*base.given[:kept], *branch.given[kept:]))
            if kept == len(base.given):
                branches.remove(base)
        branches.append(branch)
        del branches[:-_MAX_BRANCHES]


def _shorten(items: OrderedDict[Any, Any], size: int) -> None:
    while len(items) > size:
        items.popitem(last=False)


def _rebuilt(trunk: Trunk, tools: tuple[Message, ...], messages: Sequence[Message]) -> Trunk:
    if tools is trunk.tools and all(a is b for a, b in zip(messages, trunk.messages, strict=True)):
        return trunk
    return Trunk.build(
        key=trunk.key,
        model=trunk.model,
        messages=messages,
        tools=tools,
        fields=trunk.fields,
        exact=trunk.exact,
    )


def _best(
    branches: Sequence[_Branch], messages: Sequence[Message]
) -> tuple[_Branch | None, _Match]:
    """The branch that agrees longest with the messages, the newest first."""
    best, found = None, _Match()
    for branch in reversed(branches):
        match = _match(branch, messages)
        if match.kept > found.kept:
            best, found = branch, match
        if match.kept == len(messages) or match.kept == len(branch.given):
            break
    return best, found


def _match(branch: _Branch, messages: Sequence[Message]) -> _Match:
    given, sent = branch.given, branch.sent.messages
    repairs: list[Repair] = []
    changes: list[Change] = []
    leading = True
    at = 0
    for first, now, mended in zip(given, messages, sent, strict=False):
        leading = leading and _is_system(now)
        # Equal to what was sent: repaired before, by another wrapper of the same model.
        if first is not now and now not in (first, mended):
            past = _look_past(at, first, now, leading=leading)
            if past is None:
                break
            repairs.extend(past[0])
            changes.extend(past[1])
        at += 1
    return _Match(at, tuple(repairs), tuple(changes))


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def _look_past(
    index: int, first: Message, now: Message, *, leading: bool
) -> tuple[list[Repair], tuple[Change, ...]] | None:
    """What has to be mended for `now` to be `first` again; None when it says something else."""
    old, new = (message_parts(m, FieldRules()) for m in (first, now))
    if [label for label, _ in old] != [label for label, _ in new]:
        return None
    repairs: list[Repair] = []
    changes: tuple[Change, ...] = ()
    for (label, was), (_, text) in zip(old, new, strict=True):
        if was == text:
            continue
        path = f"messages[{index}].{label}"
        if label.endswith(ARGUMENTS) and _same_json(was, text):
            repairs.append(Repair("serialisation", path, "The first argument text was sent again."))
        elif leading and label == "content" and (found := volatile_changes(was, text)):
            changes = found
            repairs.extend(_frozen(path, change) for change in found)
        else:
            return None
    if not repairs:
        path = f"messages[{index}]"
        repairs.append(Repair("serialisation", path, "The message's first form was sent again."))
    return repairs, changes


def _frozen(path: str, change: Change) -> Repair:
    detail = f"{change.before!r} was kept and {change.after!r} moved to the end."
    return Repair(change.kind, path, detail)


def _same_json(old: str, new: str) -> bool:
    parsed = sorted_json(old)
    return parsed is not None and parsed == sorted_json(new)


def _add_note(fresh: list[Message], changes: Sequence[Change]) -> int | None:
    """Put fresh values behind the newest user or tool text that was not sent yet.

    It stays there: once sent, the message is repeated in this form.
    """
    for at in range(len(fresh) - 1, -1, -1):
        content = fresh[at].get("content")
        if fresh[at].get("role") not in ("user", "tool") or not isinstance(content, str | list):
            continue
        values = "; ".join(
            f"now: {c.after}" if c.kind == "clock" else f"{c.before} is now {c.after}"
            for c in changes
        )
        note = f"\n\n[{values}]"
        longer = (
            content + note
            if isinstance(content, str)
            else [*content, {"type": "text", "text": note}]
        )
        fresh[at] = {**fresh[at], "content": longer}
        return at
    return None


def _first_tools(
    first: tuple[Message, ...], now: tuple[Message, ...]
) -> tuple[tuple[Message, ...], list[Repair]]:
    """The tools in their first order and bytes, when they are the same set; else as they are."""
    if first is now or canonical(first) == canonical(now):
        return first, []
    if sorted(map(_any_order, first)) != sorted(map(_any_order, now)):
        return now, []
    in_order = [_any_order(t) for t in first] == [_any_order(t) for t in now]
    kind: Kind = "serialisation" if in_order else "tools"
    return first, [Repair(kind, "tools", "The tools were sent in their first order and bytes.")]


def _any_order(tool: Message) -> str:
    return sorted_json(text_of(tool)) or ""


def _call_order(
    messages: tuple[Message, ...],
) -> tuple[tuple[Message, ...], list[tuple[int, Repair]]]:
    """Put the results of each tool batch into the order of the calls."""
    ordered = list(messages)
    moved: list[tuple[int, Repair]] = []
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        if not isinstance(calls, list | tuple) or len(calls) < 2:
            continue
        rank = {str(c.get("id")): n for n, c in enumerate(calls) if isinstance(c, Mapping)}
        end = i + 1
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        ids = [str(m.get("tool_call_id")) for m in messages[i + 1 : end]]
        ranks = [rank.get(call, -1) for call in ids]
        # An unknown or a repeated id: nothing says which order is right.
        if -1 in ranks or len({*ranks}) != len(ranks) or ranks == sorted(ranks):
            continue
        results = sorted(messages[i + 1 : end], key=lambda m: rank[str(m.get("tool_call_id"))])
        ordered[i + 1 : end] = results
        detail = "The tool results were put into the order of the calls."
        moved.append((i + 1, Repair("reordered", f"messages[{i + 1}]", detail)))
    return tuple(ordered), moved


def _replay(index: int, message: Message, known: Mapping[str, str]) -> tuple[Message, list[Repair]]:
    """The message with its tool calls' arguments in the model's own text."""
    calls = message.get("tool_calls")
    if not known or not isinstance(calls, list | tuple):
        return message, []
    repairs: list[Repair] = []
    mended: list[Any] = []
    for n, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        own = known.get(str(call.get("id"))) if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and own is not None:
            text = text_of(function.get("arguments"))
            if text != own and _same_json(own, text):
                path = f"messages[{index}].tool_calls[{n}]{ARGUMENTS}"
                repairs.append(Repair("serialisation", path, "The model's own text was replayed."))
                call = {**call, "function": {**function, "arguments": own}}
        mended.append(call)
    return ({**message, "tool_calls": mended}, repairs) if repairs else (message, [])
