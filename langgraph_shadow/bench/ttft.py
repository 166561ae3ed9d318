"""`ttft`: the time to a branch's first token, aligned and unaligned, over the trunk's length."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.bench.report import Report, Row, median, ratio
from langgraph_shadow.bench.target import Session, Target, fresh_salt, salted
from langgraph_shadow.bench.texts import trunk_of
from langgraph_shadow.branches.branch import user_update
from langgraph_shadow.runner.streaming import Answer
from langgraph_shadow.trunk.model import Trunk

LENGTHS = (500, 1000, 2000, 4000, 6000)
REPEATS = 3
LONG = 4000
"""Tokens from which two repeats must do: they take ten times as long, and vary less."""
ANSWER_TOKENS = 16
GROUP: str | None = None
COLUMNS: Mapping[str, str] = {
    "trunk_tokens": "trunk\ntokens",
    "cold_ms": "nothing\ncached\nms",
    "unaligned_ms": "un-\naligned\nms",
    "aligned_ms": "aligned\nms",
    "full_ms": "all\ncached\nms",
    "unaligned_over_aligned": "unaligned\n/ aligned",
    "aligned_over_full": "aligned\n/ all\ncached",
    "cached": "cached\ntokens",
}
ARMS = ("cold", "unaligned", "aligned", "full")


async def run(
    target: Target,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    repeats: int = REPEATS,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure every length so often, after a warm-up that is thrown away."""
    longest = (target.max_tokens or max(lengths) + 1000) - 500
    lengths = tuple(length for length in lengths if length <= longest)
    async with target.session() as session:
        say("warm-up")
        await _once(session, lengths[0])
        rows = []
        for length in lengths:
            times = min(repeats, 2) if length >= LONG else repeats
            say(f"{length} tokens, {times} times")
            rows.append(_row([await _once(session, length) for _ in range(times)]))
    last = rows[-1]
    return Report(
        bench="ttft",
        settings={"repeats": repeats, "answer_tokens": ANSWER_TOKENS},
        rows=rows,
        summary={
            name: last[name]
            for name in ("trunk_tokens", "unaligned_over_aligned", "aligned_over_full")
        },
        notes=[
            f"Medians of {repeats} (of 2 from {LONG} tokens on), one request at a time, each trunk "
            "new to the server."
        ],
    )


async def _once(session: Session, tokens: int) -> Row:
    """One trunk, new to the server, and its branch by every arm.

    - `cold`: the aligned branch on a server that has seen nothing of it: the upper limit.
    - `unaligned`: the same instruction after the same messages, but without the tools, as a
      plain call of the model would send it.
    - `aligned`: the branch as this library sends it, right after the orchestrator's request.
    - `full`: the aligned branch once more, with all its blocks cached: the lower limit.
    """
    instruction = user_update().instruction
    trunk = await trunk_of(session, fresh_salt(), tokens)
    elsewhere = salted(trunk, fresh_salt())
    aligned_elsewhere = await session.align(elsewhere, instruction)
    cold = await session.branch(elsewhere, aligned_elsewhere, max_tokens=ANSWER_TOKENS)

    line = salted(trunk, fresh_salt())
    await session.orchestrate(line)
    unaligned = await _unaligned(session, line, instruction)
    ladder = Ladder()
    start = time.perf_counter()
    aligned_branch = await session.align(line, instruction, ladder=ladder)
    align_ms = (time.perf_counter() - start) * 1e3
    aligned = await session.branch(line, aligned_branch, max_tokens=ANSWER_TOKENS)
    full = await session.branch(line, aligned_branch, max_tokens=ANSWER_TOKENS)

    answers = dict(zip(ARMS, (cold, unaligned, aligned, full), strict=True))
    return {
        "trunk_tokens": len(aligned_branch.trunk),
        "branch_tokens": aligned.prompt_tokens,
        "unaligned_tokens": unaligned.prompt_tokens,
        "cached": aligned.cached,
        "unaligned_cached": unaligned.cached,
        "carrier": aligned_branch.carrier,
        "align_ms": round(align_ms, 1),
        **{f"{arm}_ms": answer.ttft_ms for arm, answer in answers.items()},
        **{f"{arm}_answer_ms": answer.total_ms for arm, answer in answers.items()},
    }


async def _unaligned(session: Session, trunk: Trunk, instruction: str) -> Answer:
    asked = (*trunk.messages, {"role": "user", "content": instruction})
    prompt = replace(Prompt.of(trunk), messages=asked, tools=())
    return await session.ask(prompt, max_tokens=ANSWER_TOKENS)


def _row(samples: list[Row]) -> Row:
    """The samples' medians, and the samples behind the times."""
    row: dict[str, Any] = {}
    for name, value in samples[0].items():
        row[name] = value
        if isinstance(value, int | float):
            found = median(sample[name] for sample in samples)
            row[name] = round(found, 1) if name.endswith("_ms") and found is not None else found
    for name in ("trunk_tokens", "branch_tokens", "unaligned_tokens", "cached", "unaligned_cached"):
        row[name] = round(row[name]) if row[name] is not None else None
    row["unaligned_over_aligned"] = ratio(row["unaligned_ms"], row["aligned_ms"])
    row["cold_over_aligned"] = ratio(row["cold_ms"], row["aligned_ms"])
    row["aligned_over_full"] = ratio(row["aligned_ms"], row["full_ms"])
    row["samples_ms"] = {
        arm: [round(s[f"{arm}_ms"], 1) for s in samples if s[f"{arm}_ms"] is not None]
        for arm in ARMS
    }
    return row
