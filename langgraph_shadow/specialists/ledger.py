"""The specialists' ledger: one row per request, so that a chain over one cache can be seen."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.table import Table

from langgraph_shadow.delivery.printing import html_table, printed

_MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class HopRow:
    """One request of a specialist.

    Attributes:
        specialist: Its name.
        thread: LangGraph's thread id.
        namespace: Checkpoint namespace of the graph that holds it.
        turn: Requests of this visit before this one; above 0 a tool batch came in between.
        carrier: How the role was attached.
        trunk_tokens: Tokens of the trunk through the end of its last message.
        prompt_tokens: Tokens of the whole prompt, as the server counted them.
        predicted: Tokens that the block rule says will hit, given what this process sent before;
            None for the first prompt of a thread, where it cannot know what others sent, and
            where the server does not render. Of two that run side by side, one may find less:
            what the other sent is perhaps not computed yet.
        cached: Tokens that the server says did hit; None when it does not say.
        generated: Tokens generated.
        ttft_ms: Milliseconds from sending to the first token.
        total_ms: Milliseconds from sending to the end of the answer.
        called: The tool that it asked for; empty for an answer.
    """

    specialist: str
    thread: str
    namespace: str
    turn: int
    carrier: str
    trunk_tokens: int | None
    prompt_tokens: int | None
    predicted: int | None
    cached: int | None
    generated: int | None
    ttft_ms: float | None
    total_ms: float
    called: str = ""

    @property
    def computed(self) -> int | None:
        """Prompt tokens that the server computed."""
        if self.prompt_tokens is None or self.cached is None:
            return None
        return self.prompt_tokens - self.cached

    @property
    def as_predicted(self) -> bool | None:
        """Whether the server cached what the block rule predicted; None when unknown."""
        if self.predicted is None or self.cached is None:
            return None
        return self.predicted == self.cached


@dataclass(slots=True)
class HopLedger:
    """The newest requests of a shadow's specialists, oldest first. Thread-safe."""

    _rows: deque[HopRow] = field(default_factory=lambda: deque(maxlen=_MAX_ROWS))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, row: HopRow) -> None:
        """Record one request."""
        with self._lock:
            self._rows.append(row)

    @property
    def rows(self) -> tuple[HopRow, ...]:
        """The rows, oldest first."""
        with self._lock:
            return tuple(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[HopRow]:
        return iter(self.rows)

    def summary(self) -> str:
        """One line: what was proved, and what was computed."""
        rows = [row for row in self.rows if row.computed is not None]
        known = [row for row in rows if row.as_predicted is not None]
        held = sum(bool(row.as_predicted) for row in known)
        computed = sum(row.computed or 0 for row in rows)
        prompt = sum(row.prompt_tokens or 0 for row in rows)
        return (
            f"predicted = cached on {held} of {len(known)} hops; "
            f"{computed} of {prompt} prompt tokens computed"
        )

    def table(self) -> Table:
        """The rows as a rich table."""
        table = Table(title="Specialists", caption=self.summary(), caption_justify="left")
        for name, right in _COLUMNS:
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*_cells(row))
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return printed(self.table(), width=120)

    def __repr__(self) -> str:
        return f"<HopLedger {self.summary()}>"

    def _repr_html_(self) -> str:
        return html_table(self.summary(), (name for name, _ in _COLUMNS), map(_cells, self.rows))


_COLUMNS = (
    ("specialist", False),
    ("turn", True),
    ("carrier", False),
    ("trunk", True),
    ("prompt", True),
    ("predicted", True),
    ("cached", True),
    ("computed", True),
    ("generated", True),
    ("ttft ms", True),
    ("asked for", False),
)


def _cells(row: HopRow) -> tuple[str, ...]:
    return (
        row.specialist,
        str(row.turn),
        row.carrier,
        _number(row.trunk_tokens),
        _number(row.prompt_tokens),
        _number(row.predicted),
        _number(row.cached) + (" !" if row.as_predicted is False else ""),
        _number(row.computed),
        _number(row.generated),
        _number(row.ttft_ms),
        row.called,
    )


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
