"""`harm`: what shadows do to the orchestrator's own times, under every launch mode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from langgraph_shadow.bench.looping import Looping, looping_agent, search_tool
from langgraph_shadow.bench.report import Report, Row, median, percentile, ratio
from langgraph_shadow.bench.stopwatch import ModelCall, Stopwatch, cache_use
from langgraph_shadow.bench.target import Session, Target, fresh_salt
from langgraph_shadow.branches.branch import user_update
from langgraph_shadow.delivery.ledger import LedgerRow
from langgraph_shadow.runner.options import Launch
from langgraph_shadow.shadow import Shadow

THREADS = (1, 4, 8)
TOOL_SECONDS = (0.0, 0.5, 2.0)
STAGGERED = (0.0, 0.6, 1.2)
"""Seconds that the three parallel tools of a staggered batch take."""

LIFETIMES_S = (30, 300, 480)
"""How long blocks are kept elsewhere: a prefill node's lease, a router's session, a decode node's
blocks (facts/kv-sharing.md §C)."""

ANSWER_TOKENS = 24
BATCHES = 2
DRAIN_S = 60.0
REPEATS = 5
GROUP: str | None = "case"
COLUMNS: Mapping[str, str] = {
    "arm": "shadow",
    "wall_s": "wall\ns",
    "wall_ratio": "/ off",
    "ttft_ms": "first\ntoken\nms",
    "ttft_ratio": "/ off",
    "itl_ms": "next\ntoken\nms",
    "itl_ratio": "/ off",
    "kv_peak": "KV\nuse",
    "lag_ms": "lag\nms",
    "updates": "up-\ndates",
    "late": "late,\nshed",
}


@dataclass(frozen=True, slots=True)
class Arm:
    """How shadows run beside the agents.

    Attributes:
        launch: The launch mode; None runs no shadow.
        priority: Whether branches ask to be served later than the orchestrator.
        prefill_ahead: Whether finished results are computed while others still run.
    """

    launch: Launch | None = None
    priority: bool = True
    prefill_ahead: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        if self.launch is None:
            return "off"
        ahead = ", ahead" if self.prefill_ahead else ""
        return f"{self.launch}{'' if self.priority else ', no priority'}{ahead}"

    def shadow(self, llm: Looping) -> Shadow | None:
        """A shadow with the library's defaults but for what the arm is about."""
        if self.launch is None:
            return None
        return Shadow(
            llm,
            branches=[user_update()],
            launch=self.launch,
            priority="auto" if self.priority else None,
            prefill_ahead=self.prefill_ahead,
            on_event=lambda _: None,
        )


OFF = Arm()
LAUNCHES: tuple[Launch, ...] = ("follow", "gap", "lead")
GRID = (OFF, *(Arm(launch, priority) for launch in LAUNCHES for priority in (True, False)))
AHEAD = (OFF, Arm("follow"), Arm("follow", prefill_ahead=True))


@dataclass(frozen=True, slots=True)
class Case:
    """A load: so many agents at once, with tools that take so long.

    Attributes:
        threads: Agents at once.
        tools: Seconds that each tool of a batch takes, in call order.
        arms: What is compared under this load, `off` first.
    """

    threads: int
    tools: tuple[float, ...]
    arms: tuple[Arm, ...] = GRID

    @property
    def name(self) -> str:
        """What the table calls it."""
        agents = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{agents}, tools {' / '.join(f'{s:g}' for s in self.tools)} s"


@dataclass(slots=True)
class Sample:
    """One run of all agents of a case under one arm."""

    wall_s: float
    calls: list[ModelCall]
    ledger: tuple[LedgerRow, ...]
    kv: list[float]
    block_size: int
    gaps_s: list[float] = field(init=False)
    whole: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.gaps_s, self.whole = [], []
        for before, after in self._returns():
            self.gaps_s.append(after.started - (before.last or before.started))
            held = (before.prompt - 1) // self.block_size * self.block_size
            self.whole.append(after.cached >= held)

    def _returns(self) -> Iterable[tuple[ModelCall, ModelCall]]:
        """Pairs of calls of one conversation, each with the one that followed."""
        for thread in {call.thread for call in self.calls}:
            yield from pairwise(c for c in self.calls if c.thread == thread)

    @property
    def after_tools(self) -> list[ModelCall]:
        """The calls that a shadow could have slowed down: not the first of a conversation."""
        return [after for _, after in self._returns()]


Samples: TypeAlias = dict[tuple[Case, Arm], list[Sample]]


def cases(
    threads: Iterable[int] = THREADS, tool_seconds: Iterable[float] = TOOL_SECONDS
) -> list[Case]:
    """The whole grid, and the staggered batches."""
    counts = tuple(threads)
    grid = [Case(count, (seconds,)) for seconds in tool_seconds for count in counts]
    return [*grid, *(Case(count, STAGGERED, AHEAD) for count in counts[:2])]


async def run(
    target: Target,
    *,
    chosen: list[Case] | None = None,
    minutes: float = 15.0,
    max_repeats: int = REPEATS,
    batches: int = BATCHES,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run every case once with all its arms, then again, quickest first, while there is time.

    The arms of a case follow each other directly, every other time in reverse order, so that a
    machine that slows down hurts all of them alike.

    Args:
        target: The server.
        chosen: The loads; the whole grid by default.
        minutes: No case is repeated that would not end in this time; each runs once.
        max_repeats: Repeats of a case at most.
        batches: Tool batches of each agent.
        say: Told what is being measured.
    """
    chosen = cases() if chosen is None else chosen
    samples: Samples = {(case, arm): [] for case in chosen for arm in case.arms}
    took = dict.fromkeys(chosen, 0.0)
    end = time.perf_counter() + minutes * 60
    async with target.session() as session:
        say("warm-up")
        await _sample(session, Case(1, (0.0,)), Arm("follow"), batches)
        for repeat in range(max_repeats):
            for case in sorted(chosen, key=took.__getitem__):
                start = time.perf_counter()
                if repeat and start + took[case] > end:
                    continue
                say(f"{case.name} ({repeat + 1})")
                for arm in case.arms[::-1] if repeat % 2 else case.arms:
                    samples[case, arm].append(await _sample(session, case, arm, batches))
                took[case] = time.perf_counter() - start
    rows = [_row(case, arm, samples) for case in chosen for arm in case.arms]
    return Report(
        bench="harm",
        settings={
            "minutes": minutes,
            "batches": batches,
            "answer_tokens": ANSWER_TOKENS,
            "branch": "user_update",
        },
        rows=rows,
        summary=_summary(rows),
        notes=[
            f"Every agent: {batches} tool batches, {batches + 1} calls of {ANSWER_TOKENS} tokens. "
            "Wall: to the end of the slowest agent; its ratio is the median of the repeats' own. "
            "Times to tokens: medians over all calls that follow a tool batch.",
            _returns_note(samples),
        ],
    )


async def _sample(session: Session, case: Case, arm: Arm, batches: int) -> Sample:
    """All agents of a case at once, to the end of the slowest; then the shadow is drained."""
    watch = Stopwatch()
    options = session.settings(
        max_tokens=ANSWER_TOKENS,
        batches=batches,
        parallel=len(case.tools),
        extra_body={"cache_salt": fresh_salt(), "ignore_eos": True},
    )
    llm = Looping(**options)
    shadow = arm.shadow(llm)

    async def agent(number: int) -> None:
        thread = f"{number}-{fresh_salt()}"
        graph = looping_agent(llm, search_tool(thread, case.tools), shadow)
        question = f"What does the archive know about ice? ({thread})"
        config: Any = {"configurable": {"thread_id": thread}, "callbacks": [watch]}
        await graph.ainvoke({"messages": [("user", question)]}, config)

    async with cache_use(session) as use:
        start = time.perf_counter()
        await asyncio.gather(*(agent(number) for number in range(case.threads)))
        wall = time.perf_counter() - start
    rows: tuple[LedgerRow, ...] = ()
    if shadow is not None:
        await shadow.drain(timeout=DRAIN_S)
        rows = shadow.ledger.rows
        await shadow.aclose()
    return Sample(wall, watch.calls, rows, use.readings, session.target.block_size)


def _row(case: Case, arm: Arm, samples: Samples) -> Row:
    mine, off = samples[case, arm], samples[case, case.arms[0]]
    calls = [call for sample in mine for call in sample.after_tools]
    alone = [call for sample in off for call in sample.after_tools]
    branches = [row for sample in mine for row in sample.ledger]
    gaps = [gap for sample in mine for gap in sample.gaps_s]
    whole = [held for sample in mine for held in sample.whole]
    kv = [reading for sample in mine for reading in sample.kv]
    ttft = median(c.ttft_ms for c in calls)
    itl = median(c.itl_ms for c in calls)
    return {
        "case": case.name,
        "threads": case.threads,
        "tool_seconds": list(case.tools),
        "arm": arm.name,
        "launch": arm.launch,
        "priority": arm.priority if arm.launch else None,
        "prefill_ahead": arm.prefill_ahead,
        "repeats": len(mine),
        "wall_s": median(s.wall_s for s in mine),
        "wall_ratio": median(a.wall_s / b.wall_s for a, b in zip(mine, off, strict=True)),
        "wall_samples_s": [round(s.wall_s, 3) for s in mine],
        "ttft_ms": ttft,
        "ttft_p95_ms": percentile([c.ttft_ms for c in calls if c.ttft_ms is not None], 0.95),
        "ttft_ratio": ratio(ttft, median(c.ttft_ms for c in alone)),
        "itl_ms": itl,
        "itl_ratio": ratio(itl, median(c.itl_ms for c in alone)),
        "answer_ms": median(c.answer_ms for c in calls),
        "kv_mean": round(sum(kv) / len(kv), 4) if kv else None,
        "kv_peak": round(max(kv), 4) if kv else None,
        "branches": len(branches),
        "updates": sum(r.verdict == "update" for r in branches),
        "skipped": sum(r.verdict == "skip" for r in branches),
        "failed": sum(r.verdict == "failed" for r in branches),
        "late": sum(r.late or r.verdict == "shed" for r in branches),
        "mispredicted": sum(r.as_predicted is False and not r.found_more for r in branches),
        "found_more": sum(r.found_more for r in branches),
        "branch_tokens": median(r.generated for r in branches),
        "lag_ms": median(r.lag_ms for r in branches if r.verdict != "shed"),
        "returns": len(gaps),
        "gap_s": median(gaps),
        **{f"under_{s}_s": _share([gap < s for gap in gaps]) for s in LIFETIMES_S},
        "back_whole": _share(whole),
    }


def _share(held: list[bool]) -> float:
    return round(sum(held) / len(held), 4) if held else 0.0


def _summary(rows: list[Row]) -> dict[str, Any]:
    """Wall ratios by load and arm, as `THREADS/TOOL_SECONDS/ARM`."""
    return {
        "wall_ratio": {
            f"{r['threads']}/{'+'.join(f'{s:g}' for s in r['tool_seconds'])}/{r['arm']}": r[
                "wall_ratio"
            ]
            for r in rows
            if r["launch"]
        },
        "mispredicted": sum(r["mispredicted"] for r in rows),
        "branches": sum(r["branches"] for r in rows),
    }


def _returns_note(samples: Samples) -> str:
    found = [sample for repeats in samples.values() for sample in repeats]
    gaps = [gap for sample in found for gap in sample.gaps_s]
    whole = [held for sample in found for held in sample.whole]
    shares = [f"{_share([g < limit for g in gaps]):.1%} under {limit} s" for limit in LIFETIMES_S]
    return (
        f"{len(gaps)} times a conversation came back after its tools: {', '.join(shares)}; "
        f"{_share(whole):.1%} found every block of their last prompt still cached."
    )
