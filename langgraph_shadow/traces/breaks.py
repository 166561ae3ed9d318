"""The breaks of a recorded run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.guard.fields import probe_fields
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.price import price

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_shadow.alignment.render import Renderer
    from langgraph_shadow.guard.report import Report
    from langgraph_shadow.traces.reader import TracedRequest
    from langgraph_shadow.trunk.model import Trunk, TrunkKey


@dataclass(frozen=True, slots=True)
class TracedBreak:
    """A break, and the recorded request that made it."""

    request: TracedRequest
    report: Report

    def row(self) -> dict[str, Any]:
        """The break as plain JSON values."""
        report = self.report
        return {
            "index": self.request.index,
            "thread": report.key.thread,
            "kind": report.kind,
            "path": report.path,
            "offset": report.offset,
            "lost_tokens": report.lost_tokens,
            "lost_share": round(report.lost_share, 4),
            "repair": report.repair,
        }


async def find_breaks(
    requests: Sequence[TracedRequest],
    *,
    renderer: Renderer | None = None,
    block_size: int = 1,
) -> list[TracedBreak]:
    """Replay requests through a guard.

    Args:
        requests: The requests, in the order they were sent.
        renderer: Prices each break, drops those that do not reach the prompt, and tells the guard
            which fields the template renders. Without one, breaks are judged by rule.
        block_size: The server's block size (tokens); 1 counts single tokens.
    """
    guard = Guard(mode="observe", max_threads=len(requests))
    newest: dict[TrunkKey, Trunk] = {}
    probed: set[str] = set()
    breaks: list[TracedBreak] = []
    for request in requests:
        trunk = request.trunk
        if renderer is not None and trunk.model not in probed:
            probed.add(trunk.model)
            rules = await probe_fields(renderer, trunk.model, fields=trunk.fields)
            guard.learn(trunk.model, rules)
        before, newest[trunk.key] = newest.get(trunk.key), trunk
        report = guard.check(trunk)
        if report is not None and renderer is not None and before is not None:
            report = await price(report, before, trunk, renderer, block_size=block_size)
        if report is not None:
            breaks.append(TracedBreak(request, report))
    return breaks
