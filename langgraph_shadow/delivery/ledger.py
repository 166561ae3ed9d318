"""The ledger: one row per branch, their totals, and a table to look at."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table

from langgraph_shadow.delivery.calls import CallRow
from langgraph_shadow.delivery.printing import html_table, printed
from langgraph_shadow.delivery.return_clock import ReturnClock
from langgraph_shadow.delivery.timeline import timeline

Outcome = Literal["update", "skip", "failed", "shed"]
Mode = Literal["shared", "mirror"]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What one branch cost and what came of it.

    Attributes:
        branch: The branch's name.
        mode: `shared` (the orchestrator's served model) or `mirror` (another one).
        thread: LangGraph's thread id.
        namespace: Checkpoint namespace of the agent.
        tool_call_ids: The tool batch, in call order.
        launch: What the branch waited for before it left.
        exact: True when its trunk is what the orchestrator really sent, False when predicted.
        carrier: How the instruction was attached; empty when nothing was sent.
        kept: Trunk tokens that the branch's prompt keeps as its prefix.
        prompt_tokens: Tokens of the branch's prompt, as the server counted them.
        predicted: Tokens that the block rule says will hit; None when they cannot be known.
        cached: Tokens that the server says did hit; None when it does not say.
        miss: Why far fewer hit than predicted: `wrong replica or evicted` when the server computed
            the very prompt that was predicted (one of the two where KV events tell), `ahead of the
            orchestrator` when that one does not stream and its request was not computed yet, else
            `another prompt`; empty when it is no miss.
        generated: Tokens generated.
        ttft_ms: Milliseconds from sending to the first token.
        total_ms: Milliseconds from sending to the end of the answer.
        lag_ms: Milliseconds from the end of the tool batch to the verdict.
        verdict: `update`, `skip`, `failed` or `shed` (not sent, or cancelled).
        text: The sentence, for an update.
        reason: Why it was skipped, shed or failed.
        delivered: Whether an update was handed to a stream, queue or function during the run.
        late: Whether the verdict came after the run had ended.
        run_id: The branch's own run, when it is traced; also the id of its trace.
        shadow_of_run: The run of the model call that asked for the tool batch.
        at: When the verdict came, in `time.perf_counter` seconds.
    """

    branch: str
    mode: Mode
    thread: str
    namespace: str
    tool_call_ids: tuple[str, ...]
    launch: str
    exact: bool
    verdict: Outcome
    carrier: str = ""
    kept: int | None = None
    prompt_tokens: int | None = None
    predicted: int | None = None
    cached: int | None = None
    miss: str = ""
    generated: int | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    lag_ms: float | None = None
    text: str = ""
    reason: str = ""
    delivered: bool = False
    late: bool = False
    run_id: str | None = None
    shadow_of_run: str | None = None
    at: float = field(default_factory=time.perf_counter, compare=False)

    @property
    def as_predicted(self) -> bool | None:
        """Whether the server cached what the block rule predicted; None when unknown."""
        if self.predicted is None or self.cached is None:
            return None
        return self.predicted == self.cached

    @property
    def found_more(self) -> bool:
        """Whether a branch under `lead`, which races its orchestrator, was overtaken by it.

        Its prediction is what must hit if it wins; the orchestrator's own blocks come on top.
        """
        return self.launch == "lead" and (self.cached or 0) > (self.predicted or 0)


@dataclass(slots=True)
class Totals:
    """Counts over the whole life of a ledger; `fired` is the sum of the outcomes.

    Attributes:
        fired: Branches that were due.
        updates: Branches that had something to tell.
        skipped: Branches that answered SKIP, or whose answer was not fit for a person.
        failed: Branches that were sent and failed, or could not be aligned.
        shed: Branches that were due but not sent, or cancelled, to do no harm.
        delivered: Updates handed to a stream, queue or function while the run was going on.
        late: Updates that came after the run had ended.
    """

    fired: int = 0
    updates: int = 0
    skipped: int = 0
    failed: int = 0
    shed: int = 0
    delivered: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class GuardRow:
    """A break or a repair that the guard recorded.

    Attributes:
        thread: LangGraph's thread id.
        kind: The mutation's kind.
        path: Where it is.
        message: The report's sentences.
    """

    thread: str
    kind: str
    path: str
    message: str


@dataclass(slots=True)
class Ledger:
    """Rows of the most recent branches, and totals over all of them. Thread-safe.

    Attributes:
        max_rows: Rows kept; older ones fall out, the totals stay.
        totals: Counts over the ledger's whole life.
        returns: How soon the agents came back for their blocks.
    """

    max_rows: int = 10_000
    totals: Totals = field(default_factory=Totals)
    returns: ReturnClock = field(default_factory=ReturnClock)
    _rows: deque[LedgerRow] = field(init=False)
    _guard: deque[GuardRow] = field(init=False)
    _calls: deque[CallRow] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._rows = deque(maxlen=self.max_rows)
        self._guard = deque(maxlen=self.max_rows)
        self._calls = deque(maxlen=self.max_rows)

    def add(self, row: LedgerRow) -> None:
        """Record one branch."""
        with self._lock:
            self._rows.append(row)
            totals = self.totals
            totals.fired += 1
            totals.updates += row.verdict == "update"
            totals.skipped += row.verdict == "skip"
            totals.failed += row.verdict == "failed"
            totals.shed += row.verdict == "shed"
            totals.late += row.verdict == "update" and row.late
            totals.delivered += row.delivered

    def add_guard(self, row: GuardRow) -> None:
        """Record one break or repair."""
        with self._lock:
            self._guard.append(row)

    def add_call(self, row: CallRow) -> None:
        """Record one model call of the orchestrator."""
        with self._lock:
            self._calls.append(row)
        self.returns.saw(row)

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """The branches, oldest first."""
        with self._lock:
            return tuple(self._rows)

    @property
    def guard(self) -> tuple[GuardRow, ...]:
        """The breaks and repairs, oldest first."""
        with self._lock:
            return tuple(self._guard)

    @property
    def calls(self) -> tuple[CallRow, ...]:
        """The orchestrator's model calls, in the order in which they ended."""
        with self._lock:
            return tuple(self._calls)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[LedgerRow]:
        return iter(self.rows)

    def table(self) -> Table:
        """The rows as a rich table."""
        caption = "\n".join(filter(None, (self.summary(), self.returns.summary())))
        table = Table(title="Shadow ledger", caption=caption, caption_justify="left")
        for name, justify in _COLUMNS:
            table.add_column(name, justify="right" if justify else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*_cells(row))
        return table

    def summary(self) -> str:
        """One line: what was proved, what was delivered, what was left out."""
        rows = self.rows
        known = [r for r in rows if r.as_predicted is not None]
        held = sum(bool(r.as_predicted) for r in known)
        prompt = sum(r.prompt_tokens or 0 for r in known)
        cached = sum(r.cached or 0 for r in known)
        proof = (
            f"predicted = cached on {held} of {len(known)} branches, "
            f"{cached} of {prompt} prompt tokens from the cache"
            if known
            else "no branch with a known prediction"
        )
        more = sum(r.found_more for r in known)
        proof += f", {more} found more than was certain under lead" if more else ""
        missed = Counter(r.miss for r in rows if r.miss)
        proof += "".join(f", {count} missed ({why})" for why, count in missed.items())
        t = self.totals
        return (
            f"{proof}; {t.delivered} delivered, {t.late} late, {t.skipped} skipped, "
            f"{t.failed} failed, {t.shed} shed"
        )

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return printed(self.table(), width=140)

    def __repr__(self) -> str:
        return f"<Ledger {self.summary()}>"

    def _repr_html_(self) -> str:
        heads = (name for name, _ in _COLUMNS)
        table = html_table(self.summary(), heads, map(_cells, self.rows))
        return f"{timeline(self.calls, self.rows)}{table}{self.returns._repr_html_()}"


_COLUMNS = (
    ("branch", False),
    ("mode", False),
    ("launch", False),
    ("carrier", False),
    ("prompt", True),
    ("kept", True),
    ("predicted", True),
    ("cached", True),
    ("ttft ms", True),
    ("lag ms", True),
    ("verdict", False),
    ("text", False),
)


def _cells(row: LedgerRow) -> tuple[str, ...]:
    launch = row.launch if row.exact else f"{row.launch} (predicted)"
    mark = " !" if row.as_predicted is False and not row.found_more else ""
    return (
        row.branch,
        row.mode,
        launch,
        row.carrier or "—",
        _number(row.prompt_tokens),
        _number(row.kept),
        _number(row.predicted),
        f"{_number(row.cached)}{mark} {row.miss}".rstrip(),
        _number(row.ttft_ms),
        _number(row.lag_ms),
        f"{row.verdict} (late)" if row.late else row.verdict,
        row.text or row.reason,
    )


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
