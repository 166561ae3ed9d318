"""A recorded run as one page: a timeline of every line, its breaks and their repairs."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_shadow.traces.breaks import Step, TracedBreak
    from langgraph_shadow.traces.summary import Analysis, Summary
    from langgraph_shadow.trunk.model import TrunkKey

_OPEN_LINES = 12
"""Lines that are unfolded when the page is opened; those with breaks always are."""

_TALLEST_PX = 150
"""The tallest bar of each line; the rest of a chart's height is for marks and times."""


def page(found: Analysis, *, title: str) -> str:
    """The page. It needs no other file, no script and no network.

    Args:
        found: The replayed run.
        title: What to call it, for example the file's name.
    """
    breaks = {id(b.request): i for i, b in enumerate(found.breaks, 1)}
    lines = found.lines.items()
    start = min((s.request.time for s in found.steps if s.request.time is not None), default=None)
    charts = "".join(
        _line(key, steps, breaks, start, is_open=i < _OPEN_LINES)
        for i, (key, steps) in enumerate(lines)
    )
    name = escape(title)
    body = (
        f"<header><h1>{name}</h1><p>{_lead(found)}</p></header>"
        f"{_tiles(found.summary)}{_LEGEND if charts else ''}{charts}"
        f"{_breaks(found.breaks)}{_unknown(found)}"
    )
    style = files("langgraph_shadow.traces").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: prefix check</title><style>{style}</style><main>{body}</main></html>\n"
    )


_LEGEND = (
    '<p class="legend"><i class="kept"></i>computed by the call before it '
    '<i class="lost"></i>lost by a break <i class="new"></i>new '
    '<i class="cached"></i>what the server took from its cache, as recorded</p>'
)


def _lead(found: Analysis) -> str:
    summary = found.summary
    if summary.breaks:
        said = f"{summary.breaks} of {summary.requests} prompts do not extend the one before them."
    elif summary.unknown:
        said = "No break in the prompts that the file holds."
    else:
        said = "Every prompt extends the one before it."
    return escape(said)


def _tiles(summary: Summary) -> str:
    tiles = [("requests", str(summary.requests)), ("breaks", str(summary.breaks))]
    if summary.unknown:
        tiles.append(("unknown", str(summary.unknown)))
    if summary.prompt_tokens is not None:
        tiles.append(("prompt tokens", f"{summary.prompt_tokens:,}"))
    if summary.reusable_share is not None:
        tiles.append(("reusable", f"{summary.reusable_share:.0%}"))
    if summary.reused_share is not None:
        tiles.append(("reused, as recorded", f"{summary.reused_share:.0%}"))
    if summary.lost_tokens:
        tiles.append(("tokens lost to breaks", f"{summary.lost_tokens:,}"))
    cells = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in tiles)
    return f'<section class="tiles">{cells}</section>'


def _line(
    key: TrunkKey,
    steps: Sequence[Step],
    breaks: dict[int, int],
    start: float | None,
    *,
    is_open: bool,
) -> str:
    broken = sum(s.report is not None for s in steps)
    tallest = max(s.size for s in steps) or 1
    bars = "".join(_bar(s, breaks.get(id(s.request)), tallest, start) for s in steps)
    unit = "tokens" if all(s.in_tokens for s in steps) else "characters"
    facts = f"{len(steps)} requests, longest prompt {tallest:,} {unit}"
    if broken:
        facts += f", {broken} broken"
    name = " · ".join(escape(part) for part in (key.thread, key.namespace, key.node) if part)
    return (
        f"<details{' open' if is_open or broken else ''}><summary><h2>{name or 'one thread'}</h2>"
        f'<span>{facts}</span></summary><div class="chart">{bars}</div></details>'
    )


def _bar(step: Step, number: int | None, tallest: int, start: float | None) -> str:
    height = _TALLEST_PX * step.size / tallest
    kept = 100 * step.reusable
    lost = 0.0
    if step.report is not None and step.before is not None:
        # Of this prompt: as much as the break took from the one before it, and no more than is new.
        before = step.lost_tokens if step.in_tokens else None
        share = before / step.size if before and step.size else step.report.lost_share
        lost = min(100 - kept, 100 * share)
    tick = ""
    if step.reused is not None:
        tick = f'<s style="bottom:{min(100.0, 100 * step.reused):.1f}%"></s>'
    mark = f'<a href="#break-{number}">{number}</a>' if number else ""
    when = ""
    if start is not None and step.request.time is not None:
        when = f"+{step.request.time - start:.1f} s"
    return (
        f'<div class="call" title="{escape(_hint(step), quote=True)}">{mark}'
        f'<div class="bar" style="height:{height:.1f}px">'
        f'<i class="kept" style="height:{kept:.1f}%"></i>'
        f'<i class="lost" style="height:{lost:.1f}%"></i>{tick}</div>'
        f"<small>{when or step.request.line}</small></div>"
    )


def _hint(step: Step) -> str:
    unit = "tokens" if step.in_tokens else "characters"
    said = [
        f"line {step.request.line}",
        f"{step.size:,} {unit}",
        f"{'' if step.exact else 'about '}{step.reusable:.0%} reusable",
    ]
    if step.request.cached_tokens is not None:
        said.append(f"{step.request.cached_tokens:,} tokens cached")
    if step.report is not None:
        said.append(f"{step.report.kind} at {step.report.path}")
    return ", ".join(said)


def _breaks(breaks: Sequence[TracedBreak]) -> str:
    if not breaks:
        return ""
    items = "".join(_break(i, found) for i, found in enumerate(breaks, 1))
    return f'<h2 class="list">Breaks</h2><ol class="breaks">{items}</ol>'


def _break(number: int, found: TracedBreak) -> str:
    report = found.report
    where = " · ".join(
        escape(part)
        for part in (f"line {found.request.line}", report.key.thread, report.key.node)
        if part
    )
    cached = f"; {escape(found.cached)} prompt tokens were cached" if found.cached else ""
    return (
        f'<li id="break-{number}"><p><b>{escape(report.kind)}</b> <code>{escape(report.path)}'
        f"</code>, character {report.offset} <span>{where}</span></p>"
        f"<p><del>{escape(report.before) or '∅'}</del> became "
        f"<ins>{escape(report.after) or '∅'}</ins></p>"
        f"<p>Computed again: {escape(found.cost)}{cached}.</p>"
        f"<p>{escape(report.repair)}</p></li>"
    )


def _unknown(found: Analysis) -> str:
    if not found.unknown:
        return ""
    items = "".join(
        f"<li>line {u.line}{' · ' + escape(u.key.thread) if u.key.thread else ''}: "
        f"{escape(u.reason)}</li>"
        for u in found.unknown
    )
    return f'<h2 class="list">Unknown</h2><ul class="unknown">{items}</ul>'
