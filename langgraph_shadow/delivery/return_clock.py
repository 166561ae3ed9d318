"""How soon agents come back for their blocks: the time from an answer's end to the next request."""

from __future__ import annotations

import math
import statistics
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from langgraph_shadow.delivery.printing import html_table, printed

if TYPE_CHECKING:
    from langgraph_shadow.delivery.calls import CallRow

EXPIRY_MARGIN_S = 5.0
"""Seconds before the end of a lifetime in which blocks are not asked for any more
(facts/kv-sharing.md §C)."""

LIFETIMES_S = (30.0, 300.0, 480.0)
"""A prefill server's lease, a router's session, a decode server's blocks: the usual defaults."""

PERSON = "a person"
"""What a thread waits for after an answer without tool calls."""

_MAX_GAPS = 10_000
_MAX_LINES = 4096
_RECENT = 128
_ENOUGH = 8
"""Gaps from which a lifetime is recommended."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One return.

    Attributes:
        thread: LangGraph's thread id.
        after: The tools whose results it waited for, joined by ` + `; `PERSON` after an answer.
        seconds: From the answer's last token to the next request.
    """

    thread: str
    after: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ReturnShare:
    """How many returns found their blocks under one lifetime.

    Attributes:
        ttl: The lifetime, in seconds.
        in_time: Returns before its end, less the expiry margin.
        late: Returns after it.
        censored: Agents that have not come back yet: nobody knows which they will be.
    """

    ttl: float
    in_time: int
    late: int
    censored: int

    @property
    def share(self) -> float | None:
        """Share of the returns that were in time; None when there was none."""
        known = self.in_time + self.late
        return self.in_time / known if known else None


class ReturnClock:
    """Measures every return of every agent. Thread-safe and bounded."""

    def __init__(self) -> None:
        self._gaps: deque[Gap] = deque(maxlen=_MAX_GAPS)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._out: OrderedDict[tuple[str, str, str], tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()

    def saw(self, call: CallRow) -> None:
        """A model call ended. A failed one is none: what counts is the answer before it."""
        if call.failed:
            return
        key = (call.thread, call.namespace, call.node)
        after = " + ".join(sorted(set(call.called))) or PERSON
        with self._lock:
            before = self._out.pop(key, None)
            self._out[key] = (call.ended, after)
            while len(self._out) > _MAX_LINES:
                self._out.popitem(last=False)
            if before is None or call.started < before[0]:  # they overlapped: no return
                return
            seconds = call.started - before[0]
            self._gaps.append(Gap(call.thread, before[1], seconds))
            if before[1] != PERSON:
                self._recent.append(seconds)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The returns, oldest first."""
        with self._lock:
            return tuple(self._gaps)

    @property
    def censored(self) -> int:
        """Agents that have not come back since their last answer."""
        with self._lock:
            return len(self._out)

    def share(self, ttl: float, *, after: str | None = None) -> ReturnShare:
        """How many returns found blocks that live for `ttl` seconds.

        Args:
            ttl: The lifetime, in seconds.
            after: Only returns after these tools, or after `PERSON`.
        """
        with self._lock:
            gaps = [g.seconds for g in self._gaps if after in (None, g.after)]
            out = sum(after in (None, waits) for _, waits in self._out.values())
        in_time = sum(seconds < ttl - EXPIRY_MARGIN_S for seconds in gaps)
        return ReturnShare(ttl, in_time, len(gaps) - in_time, out)

    def tool_seconds(self, share: float = 0.95) -> float | None:
        """Seconds within which so many of the recent returns from tools came; None when few did."""
        with self._lock:
            recent = list(self._recent)
        return quantile(recent, share) if len(recent) >= _ENOUGH else None

    def recommended_ttl(self, share: float = 0.95) -> int | None:
        """Whole seconds that a decode server should keep blocks (`decoder_kv_blocks_ttl`).

        Returns:
            The lifetime under which so many of the recorded returns were in time; None when there
            were too few to say.
        """
        gaps = [gap.seconds for gap in self.gaps]
        if len(gaps) < _ENOUGH:
            return None
        return math.floor(quantile(gaps, share) + EXPIRY_MARGIN_S) + 1

    def summary(self) -> str:
        """One line: returns, those in time, and the recommended lifetime; empty without returns."""
        if not self.gaps:
            return ""
        parts = []
        for ttl in LIFETIMES_S:
            found = self.share(ttl)
            parts.append(f"{found.in_time} of {found.in_time + found.late} within {ttl:.0f} s")
        wanted = self.recommended_ttl()
        advice = f"; decoder_kv_blocks_ttl {wanted} would do for 95 %" if wanted else ""
        return f"returns: {', '.join(parts)}, {self.censored} not back yet{advice}"

    def table(self) -> Table:
        """The returns by what they waited for, as a rich table."""
        table = Table(title="Returns", caption=self.summary(), caption_justify="left")
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name == "after" else "right")
        for row in self._rows():
            table.add_row(*row)
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return printed(self.table(), width=120)

    def __repr__(self) -> str:
        return f"<ReturnClock {self.summary() or 'no return yet'}>"

    def _repr_html_(self) -> str:
        if not self.gaps:
            return ""
        return html_table(self.summary(), _COLUMNS, self._rows())

    def _rows(self) -> Iterable[tuple[str, ...]]:
        by_tool: dict[str, list[float]] = {}
        for gap in self.gaps:
            by_tool.setdefault(gap.after, []).append(gap.seconds)
        for after, gaps in sorted(by_tool.items()):
            shares = [self.share(ttl, after=after) for ttl in LIFETIMES_S]
            yield (
                after,
                str(len(gaps)),
                f"{statistics.median(gaps):.2f}",
                f"{quantile(gaps, 0.95):.2f}",
                f"{max(gaps):.2f}",
                *(f"{s.share:.0%}" if s.share is not None else "–" for s in shares),
                str(shares[0].censored),
            )


_COLUMNS = (
    "after",
    "returns",
    "median s",
    "95 % s",
    "longest s",
    *(f"in {ttl:.0f} s" for ttl in LIFETIMES_S),
    "not back",
)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
