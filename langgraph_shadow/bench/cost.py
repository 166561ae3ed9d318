"""`cost`: what it costs to keep a person informed, by five arms on the same conversations."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from langchain_openai import ChatOpenAI

from langgraph_shadow.bench.arms import ARMS, Aligned, Arm, Extra
from langgraph_shadow.bench.report import Report, Row, median, ratio
from langgraph_shadow.bench.research import QUESTIONS, research
from langgraph_shadow.bench.stopwatch import ModelCall, Stopwatch
from langgraph_shadow.bench.target import Session, Target, fresh_salt
from langgraph_shadow.bench.trajectories import Trajectory, fitted, replay

AGENT = "research agent"
RECORDED = "recorded trajectories"
GROUP: str | None = "input"
COLUMNS: Mapping[str, str] = {
    "arm": "arm",
    "calls": "model\ncalls",
    "wall_s": "wall\ns",
    "wall_ratio": "/ none",
    "computed": "prompt\ntokens\ncomputed",
    "computed_ratio": "/ none",
    "added": "added",
    "generated": "tokens\ngene-\nrated",
    "updates": "up-\ndates",
    "lag_ms": "lag\nms",
}

Conversation: TypeAlias = Callable[[str, ChatOpenAI, Arm, Stopwatch], Awaitable[None]]
"""Runs one conversation: its thread, the orchestrator's model, the arm, and who watches."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation under one arm."""

    wall_s: float
    calls: list[ModelCall]
    extra: Extra
    server_computed: int

    @property
    def computed(self) -> int:
        """Prompt tokens that the server computed, orchestrator and arm together."""
        return sum(c.prompt - c.cached for c in self.calls) + self.extra.computed


async def run(
    target: Target,
    *,
    questions: Sequence[str] = QUESTIONS,
    trajectories: Sequence[Trajectory] = (),
    constrain: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run every conversation under every arm, in an order that changes with each conversation.

    Args:
        target: The server.
        questions: What the demo's research agent is asked.
        trajectories: Recorded conversations to replay; cut where the model's context ends.
        constrain: Whether the research agent's model is too small to write tool calls.
        say: Told what is being measured.
    """
    rows: list[Row] = []
    notes = [
        "Each conversation and arm has a cache salt of its own, so it starts with nothing cached. "
        "Tokens are sums, wall and lag medians over the conversations."
    ]
    async with target.session() as session:
        say("warm-up")
        await _sample(session, Aligned, partial(research, QUESTIONS[0], constrain=constrain))
        if questions:
            asked = [(q, partial(research, q, constrain=constrain)) for q in questions]
            rows += _rows(AGENT, target.model, await _all(session, asked, say))
        usable = [t for t in [await fitted(session, t) for t in trajectories] if t.batches]
        if usable:
            replayed = [(t.name, partial(replay, t)) for t in usable]
            rows += _rows(RECORDED, target.model, await _all(session, replayed, say))
            notes.append(_replayed(trajectories, usable))
    notes += _verdicts(rows)
    return Report(
        bench="cost",
        settings={"questions": len(questions), "trajectories": len(usable)},
        rows=rows,
        summary=_summary(rows),
        notes=notes,
    )


async def _all(
    session: Session,
    conversations: Sequence[tuple[str, Conversation]],
    say: Callable[[str], None],
) -> dict[type[Arm], list[Sample]]:
    samples: dict[type[Arm], list[Sample]] = {arm: [] for arm in ARMS}
    for place, (name, conversation) in enumerate(conversations):
        start = place % len(ARMS)
        for arm in (*ARMS[start:], *ARMS[:start]):
            say(f"{name}: {arm.name}")
            samples[arm].append(await _sample(session, arm, conversation))
    return samples


async def _sample(session: Session, kind: type[Arm], conversation: Conversation) -> Sample:
    salt = fresh_salt()
    arm, watch = kind(session, salt), Stopwatch()
    llm = arm.watch(session.llm(max_tokens=256, extra_body={"cache_salt": salt}))
    before = await session.engine.metrics()
    start = time.perf_counter()
    await conversation(salt, llm, arm, watch)
    wall = time.perf_counter() - start
    extra = await arm.settle()
    after = await session.engine.metrics()
    computed = "local_compute"
    by_server = after.prompt_tokens_by_source.get(computed, 0)
    by_server -= before.prompt_tokens_by_source.get(computed, 0)
    return Sample(wall, watch.calls, extra, by_server)


def _rows(source: str, model: str, samples: dict[type[Arm], list[Sample]]) -> list[Row]:
    base = samples[Arm]
    alone = sum(s.computed for s in base)
    rows = []
    for arm, mine in samples.items():
        calls = [call for sample in mine for call in sample.calls]
        extras = [sample.extra for sample in mine]
        computed = sum(s.computed for s in mine)
        instruction = sum(e.instruction for e in extras)
        rows.append(
            {
                "input": source,
                "model": model,
                "arm": arm.name,
                "conversations": len(mine),
                "calls": len(calls),
                "wall_s": median(s.wall_s for s in mine),
                "wall_ratio": median(a.wall_s / b.wall_s for a, b in zip(mine, base, strict=True)),
                "prompt_tokens": sum(c.prompt for c in calls) + sum(e.prompt for e in extras),
                "computed": computed,
                "computed_ratio": ratio(computed, alone),
                "added": computed - alone,
                "instruction": instruction if arm is Aligned else None,
                "beyond_instruction": ratio(computed - alone - instruction, alone),
                "server_computed": sum(s.server_computed for s in mine),
                "generated": sum(c.generated for c in calls) + sum(e.generated for e in extras),
                "updates": sum(e.updates for e in extras),
                "lag_ms": median(ms for e in extras for ms in e.lags_ms),
                "ttft_ms": median(c.ttft_ms for c in calls),
                "mispredicted": sum(e.mispredicted for e in extras),
            }
        )
    return rows


def _summary(rows: Sequence[Row]) -> Row:
    """Per input, each arm's computed prompt tokens against none, and the library's own share."""
    found: Row = {}
    for row in rows:
        by_input = found.setdefault(row["input"], {})
        by_input[row["arm"]] = row["computed_ratio"]
        if row["arm"] == Aligned.name:
            by_input["aligned beyond its instruction"] = row["beyond_instruction"]
    return found


def _verdicts(rows: Sequence[Row]) -> list[str]:
    notes = [
        f"{row['input']}: the aligned shadow added {row['added']} computed prompt tokens "
        f"({row['computed_ratio'] - 1:.1%}), {row['instruction']} of them its instructions' own; "
        f"without those {row['beyond_instruction']:.1%}."
        for row in rows
        if row["arm"] == Aligned.name
    ]
    more = sum(row["server_computed"] - row["computed"] for row in rows)
    if more:
        notes.append(
            f"The server counted {more} computed prompt tokens beyond these requests' own usage: "
            "somebody else used it, or an answer was asked for twice."
        )
    return notes


def _replayed(given: Sequence[Trajectory], usable: Sequence[Trajectory]) -> str:
    calls, whole = sum(len(t.calls) for t in usable), sum(len(t.calls) for t in given)
    return (
        f"Replayed {len(usable)} of {len(given)} trajectories: {calls} of their {whole} calls fit "
        f"the served model; {sum(t.batches for t in usable)} tool batches."
    )
