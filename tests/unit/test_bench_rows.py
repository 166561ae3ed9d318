"""From samples to rows: each number is what its name says."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_shadow.bench import cost, harm, overhead, prediction, ttft
from langgraph_shadow.bench.arms import ARMS, Aligned, Arm, Extra
from langgraph_shadow.bench.stopwatch import ModelCall
from langgraph_shadow.bench.texts import prose, research


def call(thread: str, started: float, *, prompt: int, cached: int, generated: int = 5) -> ModelCall:
    """A call whose first token comes after a second, and one token each tenth of a second."""
    last = started + 1 + (generated - 1) / 10
    return ModelCall(thread, started, started + 1, last, generated, prompt, cached, generated)


def test_a_calls_times() -> None:
    one = call("t", 10, prompt=100, cached=0, generated=11)
    assert one.ttft_ms == 1000
    assert one.answer_ms == pytest.approx(2000)
    assert one.itl_ms == pytest.approx(100)
    assert ModelCall("t", 1.0).ttft_ms is None
    assert ModelCall("t", 1.0).itl_ms is None


def sample(wall: float, *, cached: int) -> harm.Sample:
    calls = [
        call("a", 0, prompt=100, cached=0),
        call("b", 0, prompt=100, cached=0),
        call("a", 41.4, prompt=150, cached=cached),
    ]
    return harm.Sample(wall, calls, (), [0.1, 0.3], 32)


def test_a_return_is_a_second_call_of_the_same_conversation() -> None:
    whole, lost = sample(1, cached=96), sample(1, cached=64)
    assert whole.gaps_s == pytest.approx([40.0])
    assert whole.whole == [True]
    assert lost.whole == [False]
    assert [c.prompt for c in whole.after_tools] == [150]


def test_harm_compares_within_a_repeat() -> None:
    case = harm.Case(1, (0.5,), (harm.OFF, harm.Arm("gap")))
    samples: harm.Samples = {
        (case, harm.OFF): [sample(1, cached=96), sample(10, cached=96)],
        (case, harm.Arm("gap")): [sample(2, cached=96), sample(11, cached=64)],
    }
    row = harm._row(case, harm.Arm("gap"), samples)
    assert row["wall_ratio"] == pytest.approx((2 + 1.1) / 2)
    assert row["repeats"] == 2
    assert row["ttft_ratio"] == 1
    assert row["kv_peak"] == 0.3
    assert (row["under_30_s"], row["under_300_s"]) == (0, 1)
    assert row["back_whole"] == 0.5
    assert "50.0% found" not in harm._returns_note(samples)
    assert "75.0% found every block" in harm._returns_note(samples)
    summary = harm._summary([row])
    assert summary["wall_ratio"] == {"1/0.5/gap": row["wall_ratio"]}


def test_the_grid_is_the_whole_one() -> None:
    cases = harm.cases()
    assert {(c.threads, c.tools) for c in cases if len(c.tools) == 1} == {
        (threads, (seconds,)) for threads in (1, 4, 8) for seconds in (0.0, 0.5, 2.0)
    }
    arms = {(a.launch, a.priority) for a in cases[0].arms if a.launch}
    assert arms == {(m, p) for m in ("follow", "gap", "lead") for p in (True, False)}
    assert cases[0].arms[0] == harm.OFF
    staggered = [c for c in cases if len(c.tools) > 1]
    assert staggered
    assert {a.prefill_ahead for a in staggered[0].arms} == {False, True}
    assert len({a.name for c in cases for a in c.arms}) == 8


def test_cost_counts_orchestrator_and_arm_together() -> None:
    def one(kind: type[Arm], extra: Extra) -> cost.Sample:
        return cost.Sample(2.0, [call("t", 0, prompt=100, cached=20)], extra, 100)

    added = Extra(prompt=120, computed=30, generated=9, instruction=24, updates=1, lags_ms=[7.0])
    samples = {arm: [one(arm, added if arm is Aligned else Extra())] for arm in ARMS}
    rows = cost._rows("recorded", "m", samples)
    plain, aligned = rows[:2]
    assert (plain["computed"], plain["added"], plain["computed_ratio"]) == (80, 0, 1)
    assert (aligned["computed"], aligned["added"], aligned["instruction"]) == (110, 30, 24)
    assert aligned["beyond_instruction"] == round(6 / 80, 3)
    assert aligned["generated"] == 14
    assert aligned["lag_ms"] == 7
    summary = cost._summary(rows)
    assert summary["recorded"]["aligned beyond its instruction"] == 0.075
    notes = cost._verdicts(rows)
    assert "added 30 computed prompt tokens (37.5%), 24 of them" in notes[0]
    assert str(sum(r["server_computed"] - r["computed"] for r in rows)) in notes[-1]


def predicted(predicted: int | None, cached: int | None, why: str = "") -> dict[str, Any]:
    return {
        "block_size": 32,
        "template": "t",
        "scenario": "1 turn",
        "carrier": "prefill",
        "predicted": predicted,
        "cached": cached,
        "why": why,
    }


def test_prediction_names_each_row_that_differs() -> None:
    rows = [
        predicted(64, 64),
        predicted(64, 32, "blocks were gone"),
        predicted(None, None, "not kept"),
    ]
    assert prediction.summary(rows) == {
        "rows": 3,
        "sent": 2,
        "differing_tokens": 32,
        "predicted_tokens": 128,
        "refused": 1,
        "unexplained": 1,
    }
    assert prediction.summary([predicted(64, 96, prediction.EXPLAINED)])["unexplained"] == 0
    total, *named = prediction.notes(rows)
    assert total.startswith("32 differing tokens over 2 branches")
    assert len(named) == 1
    assert "64 predicted, 32 cached; blocks were gone" in named[0]
    (line,) = prediction.condensed(rows)
    assert (line["sent"], line["refused"], line["differing"]) == (2, 1, 32)


def test_ttft_takes_medians() -> None:
    samples = []
    for base in (1.0, 2.0, 30.0):
        times = {f"{arm}_ms": base * 10 for arm in ttft.ARMS}
        answers = {f"{arm}_answer_ms": base * 20 for arm in ttft.ARMS}
        tokens = {"trunk_tokens": 500, "branch_tokens": 530, "unaligned_tokens": 400}
        cached = {"cached": 480, "unaligned_cached": 32, "carrier": "user_turn"}
        samples.append({**tokens, **cached, "align_ms": base, **times, **answers})
    row = ttft._row(samples)
    assert row["aligned_ms"] == 20
    assert row["aligned_answer_ms"] == 40
    assert row["unaligned_over_aligned"] == 1
    assert row["samples_ms"]["cold"] == [10, 20, 300]
    assert row["carrier"] == "user_turn"
    assert isinstance(row["trunk_tokens"], int)


async def test_overhead_runs_without_a_server() -> None:
    report = await overhead.run(lengths=(1000, 4000), batches=3)
    short, long = report.rows
    assert short["path_us"] > 0
    assert short["align_ms"] > 0
    assert long["messages"] > 2 * short["messages"]
    assert long["retained_kib"] > short["retained_kib"] > 0


def test_texts_are_the_same_for_the_same_seed_only() -> None:
    assert prose("a", 20) == prose("a", 20) != prose("b", 20)
    history = research("a", 900)
    assert history[-1]["role"] == "tool"
    words = sum(len(m["content"].split()) for m in history if m["role"] == "tool")
    assert words == pytest.approx(900, rel=0.05)
    assert len({m.get("tool_call_id") for m in history if m["role"] == "tool"}) == 5
