"""The recommendation follows from the numbers, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_shadow.correction.advice import recommend


def row(method: str, kl: float, kind: str = "method", **more: Any) -> dict[str, Any]:
    effect = 0.01
    return {
        "method": method,
        "kind": kind,
        "kl": kl,
        "worst_kl": kl,
        "share_of_role": kl / effect if kind != "exact" else None,
        "of_prefill": 0.25,
        "copy_mib": 1.5,
        "stored_mib": 3.0,
        **more,
    }


def hops(**kl: float) -> list[dict[str, Any]]:
    given = {"lying": 0.02, "rotated": 0.004, "first": 0.003, "rule": 0.0042, "effect": 0.01, **kl}
    return [
        row("role of the agent before", given["effect"], "reference"),
        row("as it lies", given["lying"]),
        row("rotated", given["rotated"]),
        row("first 16 tokens", given["first"]),
        row("KVCMAS rule, anchors: 7", given["rule"]),
        row("KVCMAS, gated", 0.0001, dense_share=0.25, reused_kl=0.0043),
        row("100% most deviating", 1e-9, "sanity"),
        row("ceiling r=32", given["rotated"] / 10, "ceiling"),
        row("role last", 1e-9, "exact"),
    ]


def advised(**kl: float) -> str:
    return " ".join(recommend(hops(**kl), [], agents=2, tokens=512))


def test_the_exact_answer_comes_first() -> None:
    said = recommend(hops(), [], agents=2, tokens=512)
    assert said[0].startswith("Put the role behind the context")
    assert "1.50 MiB" in said[0]
    assert "25% of a prefill of 512 tokens" in said[0]


@pytest.mark.parametrize(
    ("first", "words"),
    [(0.0005, "good enough"), (0.003, "a compromise"), (0.0039, "a compromise")],
)
def test_the_verdict_depends_on_what_is_lost(first: float, words: str) -> None:
    said = advised(first=first)
    assert words in said
    assert f"first 16 tokens loses least, {first / 0.01:.0%}" in said


def test_losing_more_than_half_means_prefill() -> None:
    assert "prefill: more than half" in advised(rotated=0.009, first=0.008, rule=0.0095)


def test_no_correction_may_be_the_best() -> None:
    assert "no correction does better than rotated reuse" in advised(first=0.005, rule=0.006)


@pytest.mark.parametrize(
    ("rule", "words"),
    [(0.0042, "not worth its storage"), (0.002, "takes away 50% of what rotated reuse loses")],
)
def test_anchors_are_judged_against_rotated_reuse(rule: float, words: str) -> None:
    assert words in advised(rule=rule)


def test_keys_that_lie_wrong_are_warned_of_only_where_it_matters() -> None:
    assert "5.0 times that with rotated keys" in advised()
    assert "as it lies" not in advised(lying=0.004)


def test_an_answer_that_loses_more_decides() -> None:
    rows = hops()
    for one in rows:
        one["answer_share"] = 0.8 if one["kind"] == "method" else None
    assert "prefill: more than half" in " ".join(recommend(rows, [], agents=2, tokens=512))


def test_the_gate_is_reported_with_what_it_saved() -> None:
    assert "25% of the hops were dense" in advised()
    rows = hops()
    rows[5] |= {"dense_share": 1.0, "reused_kl": None}
    assert "the gate saved nothing" in " ".join(recommend(rows, [], agents=2, tokens=512))


def test_roles_without_an_effect_allow_no_judgement() -> None:
    said = recommend(hops(effect=1e-9), [], agents=2, tokens=512)
    assert len(said) == 2
    assert "nothing can be said" in said[1]


def test_chains_are_read_from_their_first_to_their_last_hop() -> None:
    chain = {"method": "rotated", "kind": "method", "share_2": 0.4, "share_3": 0.6}
    said = " ".join(recommend(hops(), [chain], agents=3, tokens=512))
    assert "From 2 to 3 agents" in said
    assert "rotated 40% to 60%" in said
