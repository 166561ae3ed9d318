"""The ledger's timeline: the orchestrator's calls above, the branches below, as inline SVG.

No scripts and nothing from elsewhere; colours that are read on white and on black.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langgraph_shadow.delivery.calls import CallRow
    from langgraph_shadow.delivery.ledger import LedgerRow

THREADS = 4
"""Threads that are drawn, the newest ones."""

BARS = 400
"""Calls and branches that are drawn of each thread, the newest ones."""

_WIDTH, _LABELS, _LANE, _BAR, _AXIS = 960.0, 170.0, 22.0, 14.0, 24.0
_IDLE_S = 5.0
"""A thread that does nothing for longer is waiting for a person: the axis is cut there."""

_COLOURS = {
    "call": "#4c7fb8",
    "update": "#2a9d6f",
    "skip": "#9a9a9a",
    "failed": "#cf4a4a",
    "shed": "#d8973c",
}
_LEGEND = (
    ("call", "orchestrator's call"),
    ("update", "branch with an update"),
    ("skip", "SKIP"),
    ("failed", "failed"),
    ("shed", "shed (not sent)"),
)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One call or branch: a thin line while it waits, faint until its first token, then full."""

    lane: str
    kind: str
    waits: float
    start: float
    first: float
    end: float
    title: str
    row: int = 0


@dataclass(slots=True)
class _Scale:
    """From seconds to pixels, with idle stretches cut short.

    Attributes:
        spans: The stretches in which something happens: start, end, and shown seconds before.
    """

    spans: list[tuple[float, float, float]] = field(default_factory=list)
    total: float = 0.0

    @classmethod
    def of(cls, busy: Iterable[tuple[float, float]]) -> _Scale:
        scale = cls()
        merged: list[tuple[float, float]] = []
        for start, end in sorted(busy):
            if merged and start - merged[-1][1] <= _IDLE_S:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        shown = max(1e-3, sum(end - start for start, end in merged))
        at = 0.0
        for start, end in merged:
            scale.spans.append((start, end, at))
            at += end - start + shown * 0.05
        scale.total = max(1e-3, at - shown * 0.05)
        return scale

    def x(self, when: float) -> float:
        """Pixels from the left; never decreases with time."""
        start, end, at = next((s for s in reversed(self.spans) if s[0] <= when), self.spans[0])
        shown = at + min(max(0.0, when - start), end - start)
        return _LABELS + shown / self.total * (_WIDTH - _LABELS - 10)


def timeline(calls: Sequence[CallRow], rows: Sequence[LedgerRow]) -> str:
    """HTML that shows when calls and branches ran, one picture per thread; empty without any."""
    by_thread: dict[str, tuple[list[CallRow], list[LedgerRow]]] = defaultdict(lambda: ([], []))
    for call in calls:
        by_thread[call.thread][0].append(call)
    for row in rows:
        by_thread[row.thread][1].append(row)
    newest = sorted(by_thread.items(), key=lambda item: _newest(*item[1]))
    pictures = [_picture(thread, *of) for thread, of in newest[-THREADS:]]
    if not pictures:
        return ""
    if len(newest) > THREADS:
        pictures.insert(0, f"<p>{len(newest) - THREADS} earlier threads are not drawn.</p>")
    return "".join([*pictures, _legend()])


def _newest(calls: Sequence[CallRow], rows: Sequence[LedgerRow]) -> float:
    return max([c.ended for c in calls] + [r.at for r in rows])


def _picture(thread: str, calls: Sequence[CallRow], rows: Sequence[LedgerRow]) -> str:
    calls, rows = calls[-BARS:], rows[-BARS:]
    bars = _unstacked([_call_bar(c) for c in calls]) + _unstacked([_branch_bar(r) for r in rows])
    lanes = {lane: i for i, lane in enumerate(dict.fromkeys((b.lane, b.row) for b in bars))}
    scale = _Scale.of([*_working(calls), *((b.waits, b.end) for b in bars)])
    bottom = len(lanes) * _LANE + 6
    calls_end = len({(b.lane, b.row) for b in bars if b.kind == "call"}) * _LANE + 3
    parts = [
        *_axis(scale, bottom),
        f'<line x1="0" x2="{_WIDTH}" y1="{calls_end}" y2="{calls_end}" class="rule"/>',
        *(_label(lane, place) for (lane, row), place in lanes.items() if row == 0),
        *(_draw(bar, lanes[bar.lane, bar.row], scale) for bar in bars),
    ]
    height = bottom + _AXIS
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" width="100%" role="img" '
        f'style="max-width:{_WIDTH:.0f}px;display:block" '
        'font-family="sans-serif" font-size="11" fill="currentColor">'
        f"<title>Timeline of thread {escape(thread)}</title>{''.join(parts)}</svg>"
    ).replace('class="rule"', 'stroke="currentColor" stroke-opacity="0.25"')


def _call_bar(call: CallRow) -> _Bar:
    inner = call.namespace.rpartition("|")[2].partition(":")[0]
    asked = ", ".join(call.called)
    first = call.started if call.first_token is None else call.first_token
    streams = call.first_token is not None
    after = f", first token after {first - call.started:.2f} s" if streams else ""
    lines = [
        f"{call.node or 'model'}: {'failed' if call.failed else asked or 'answer'}",
        f"{call.ended - call.started:.2f} s{after}",
        f"{_tokens(call.cached)} of {_tokens(call.prompt_tokens)} prompt tokens cached",
    ]
    return _Bar(
        lane=f"orchestrator · {inner}" if inner else "orchestrator",
        kind="call",
        waits=call.started,
        start=call.started,
        first=first,
        end=call.ended,
        title="\n".join(lines),
    )


def _branch_bar(row: LedgerRow) -> _Bar:
    start = row.at - (row.total_ms or 0.0) / 1e3
    first = row.at if row.ttft_ms is None else min(row.at, start + row.ttft_ms / 1e3)
    lines = [
        f"{row.branch}: {row.verdict}{' (late)' if row.late else ''}",
        row.text or row.reason,
        f"{_tokens(row.lag_ms)} ms after the tool batch",
        f"{row.at - start:.2f} s from request to verdict" if row.total_ms else "no answer",
        f"predicted {_tokens(row.predicted)}, cached {_tokens(row.cached)} "
        f"of {_tokens(row.prompt_tokens)} prompt tokens",
    ]
    return _Bar(
        lane=row.branch,
        kind=row.verdict,
        waits=min(start, row.at - (row.lag_ms or 0.0) / 1e3),
        start=start,
        first=first,
        end=row.at,
        title="\n".join(line for line in lines if line),
    )


def _unstacked(bars: Sequence[_Bar]) -> list[_Bar]:
    """The bars in the order of their lanes; one that would lie on another gets a lower row."""
    rows: dict[str, list[float]] = defaultdict(list)
    placed = []
    for bar in sorted(bars, key=lambda b: b.waits):
        ends = rows[bar.lane]
        row = next((i for i, end in enumerate(ends) if end <= bar.waits), len(ends))
        ends[row : row + 1] = [bar.end]
        placed.append(replace(bar, row=row))
    order = list(rows)
    return sorted(placed, key=lambda b: (order.index(b.lane), b.row))


def _working(calls: Sequence[CallRow]) -> Iterable[tuple[float, float]]:
    """The stretches in which tools ran: from a call that asked for them to the next one."""
    by_line: dict[str, list[CallRow]] = defaultdict(list)
    for call in calls:
        by_line[call.namespace].append(call)
    for line in by_line.values():
        for call, following in itertools.pairwise(line):
            if call.called:
                yield call.started, max(call.ended, following.started)


def _axis(scale: _Scale, bottom: float) -> Iterable[str]:
    begin = scale.spans[0][0]
    step = _step(scale.total / 10)
    for number, (start, end, _) in enumerate(scale.spans):
        if number:
            idle = start - scale.spans[number - 1][1]
            x = (scale.x(start) + scale.x(scale.spans[number - 1][1])) / 2
            yield (
                f'<g><title>{idle:.0f} s in which nothing ran</title><text x="{x:.1f}" '
                f'y="{bottom / 2:.1f}" text-anchor="middle" opacity="0.6">⋯</text></g>'
            )
        for tick in range(math.ceil((start - begin) / step), int((end - begin) / step) + 1):
            x = scale.x(begin + tick * step)
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.1f}" class="rule"/>'
                f'<text x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="middle" opacity="0.7">'
                f"{tick * step:g} s</text>"
            )


def _step(at_least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, … (and their tenths) that is large enough."""
    power = 10.0 ** math.floor(math.log10(max(at_least, 1e-3)))
    return next((f * power for f in (1, 2, 5) if f * power >= at_least), 10 * power)


def _label(lane: str, place: int) -> str:
    name = lane if len(lane) <= 27 else lane[:26] + "…"
    y = place * _LANE + _LANE / 2 + 6
    return f'<text x="0" y="{y:.1f}">{escape(name)}</text>'


def _draw(bar: _Bar, place: int, scale: _Scale) -> str:
    colour = _COLOURS[bar.kind]
    y = place * _LANE + 6 + (_LANE - _BAR) / 2 - 3
    waits, start, first, end = map(scale.x, (bar.waits, bar.start, bar.first, bar.end))
    middle = y + _BAR / 2
    parts = [f"<title>{escape(bar.title)}</title>"]
    if start > waits:
        parts.append(
            f'<line x1="{waits:.1f}" x2="{start:.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
            f'stroke="{colour}" stroke-dasharray="2 2"/>'
        )
    for left, right, opacity in ((start, first, 0.45), (first, end, 1.0)):
        parts.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(right - left, 1.0):.1f}" '
            f'height="{_BAR}" fill="{colour}" fill-opacity="{opacity}"/>'
        )
    return f"<g>{''.join(parts)}</g>"


def _legend() -> str:
    keys = "".join(
        f'<span style="margin-right:1.2em;white-space:nowrap"><span style="display:inline-block;'
        f'width:.8em;height:.8em;background:{_COLOURS[kind]}"></span> {name}</span>'
        for kind, name in _LEGEND
    )
    note = "dotted: waiting; pale: before the first token; point at a bar for more"
    return f'<p style="font-size:85%">{keys}<br>{note}</p>'


def _tokens(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
