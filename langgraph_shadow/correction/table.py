"""From observations to rows: means over the contexts, shares of the role's effect, costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from langgraph_shadow.correction.lab import Lab
from langgraph_shadow.correction.measure import KEPT, ROLE_LAST, Observation

SERVED_BYTES = 2
"""Bytes per number in a server's cache (bfloat16), in which memory is given."""

HOP_COLUMNS = {
    "method": "first hop",
    "kl": "KL\nnats",
    "share_of_role": "of the\nrole's\neffect",
    "worst_kl": "worst\ncontext",
    "top1": "top-1",
    "answer_kl": "answer\nKL",
    "answer_share": "of the\nrole's\neffect",
    "explained_k": "ΔK\ngone",
    "explained_v": "ΔV\ngone",
}
COST_COLUMNS = {
    "method": "for each agent",
    "ms": "ms",
    "of_prefill": "of a\nprefill",
    "copy_mib": "cache of\nits own\nMiB",
    "factors_mib": "as factors\nMiB",
    "stored_mib": "kept beside\nMiB",
}
SPECTRUM_COLUMNS = {
    "hop": "difference",
    "of": "",
    "relative": "size",
    "not_rotated": "not\nrotated",
    "first_16_tokens": "first\n16",
    "second_half": "second\nhalf",
    **{f"rank_{rank}": f"r={rank}" for rank in (1, 4, 8, 16, 32, 64)},
    "cosine": "alike in\ncontexts",
}


def hop_rows(lab: Lab, found: Sequence[Observation]) -> list[dict[str, Any]]:
    """One row for each method at the second agent, the costs included."""
    first = [one for one in found if one.agent == 1]
    effect = _row([one for one in first if one.method == KEPT])
    rows = []
    for method in dict.fromkeys(one.method for one in first):
        row = _row([one for one in first if one.method == method])
        row |= _shares(row, effect) | _costs(lab, [one for one in first if one.method == method])
        rows.append({"part": "hop", **row})
    return rows


def chain_rows(found: Sequence[Observation], agents: int) -> list[dict[str, Any]]:
    """One row for each chained method: KL at the last agent of chains of 2, 3, … agents."""
    last = {one.method for one in found if one.agent == agents - 1}
    rows = []
    for method in dict.fromkeys(one.method for one in found if one.method in last):
        mine = [one for one in found if one.method == method]
        row: dict[str, Any] = {"part": "chain", "method": method, "kind": mine[0].kind}
        for agent in range(1, agents):
            there = _row([one for one in mine if one.agent == agent])
            effect = _row([one for one in found if one.method == KEPT and one.agent == agent])
            row[f"kl_{agent + 1}"] = there["kl"]
            row[f"share_{agent + 1}"] = _shares(there, effect)["share_of_role"]
            if any(one.dense for one in mine):
                row[f"dense_{agent + 1}"] = there["dense_share"]
                row[f"reused_kl_{agent + 1}"] = there["reused_kl"]
        rows.append(row)
    return rows


def chain_columns(agents: int) -> dict[str, str]:
    """Columns of the chain's table."""
    columns = {"method": "chain"}
    for agent in range(2, agents + 1):
        columns[f"kl_{agent}"] = f"{agent} agents\nKL"
        columns[f"share_{agent}"] = "of the\neffect"
    return columns


def context_rows(lab: Lab, found: Sequence[Observation]) -> list[dict[str, Any]]:
    """One row for each context: KL of every method at the second agent."""
    rows = []
    for number, context in enumerate(lab.prompts.contexts):
        mine = [one for one in found if one.context == number and one.agent == 1]
        kl = {one.method: _digits(one.scores.text.kl) for one in mine}
        row = {"part": "context", "context": context.name, "sha256": context.sha256, "kl": kl}
        if any(one.scores.answer for one in mine):
            answers = [(one.method, one.scores.answer) for one in mine]
            row["answer_kl"] = {name: _digits(answer.kl) for name, answer in answers if answer}
        rows.append(row)
    return rows


def _row(mine: Sequence[Observation]) -> dict[str, Any]:
    text = [one.scores.text for one in mine]
    answer = [one.scores.answer for one in mine if one.scores.answer is not None]
    reused = [one.scores.text.kl for one in mine if not one.dense]
    row: dict[str, Any] = {
        "method": mine[0].method,
        "kind": mine[0].kind,
        "kl": _digits(statistics.mean(score.kl for score in text)),
        "worst_kl": _digits(max(score.kl for score in text)),
        "top1": round(statistics.mean(score.top1 for score in text), 4),
    }
    if answer:
        row["answer_kl"] = _digits(statistics.mean(score.kl for score in answer))
        row["answer_worst_kl"] = _digits(max(score.kl for score in answer))
        row["answer_top1"] = round(statistics.mean(score.top1 for score in answer), 4)
    explained = [one.explained for one in mine if one.explained is not None]
    if explained:
        # Adding zero, because -0.0 would be printed as such.
        row["explained_k"] = round(statistics.mean(part[0] for part in explained), 3) + 0.0
        row["explained_v"] = round(statistics.mean(part[1] for part in explained), 3) + 0.0
    if any(one.dense for one in mine):
        row["dense_share"] = round(1 - len(reused) / len(mine), 3)
        row["reused_kl"] = _digits(statistics.mean(reused)) if reused else None
    return row


def _shares(row: dict[str, Any], effect: dict[str, Any]) -> dict[str, Any]:
    # A role that is placed last is another prompt: it has no share in the effect of one in front.
    comparable = row["kind"] != "exact"
    found = {"share_of_role": _share(row["kl"], effect["kl"]) if comparable else None}
    if "answer_kl" in row and "answer_kl" in effect:
        found["answer_share"] = _share(row["answer_kl"], effect["answer_kl"])
    return found


def _share(value: float, effect: float) -> float | None:
    return round(value / effect, 4) if effect > 0 else None


def _costs(lab: Lab, mine: Sequence[Observation]) -> dict[str, Any]:
    if mine[0].kind == "reference":
        return {}
    times = {one.context: one.seconds for one in mine if one.seconds is not None}
    # Each time against the prefill of the same context, which was taken next to it: on a shared
    # machine the load drifts.
    shares = [seconds / lab.prefill_s[context] for context, seconds in times.items()]
    whole = len(lab.prompts.contexts[0].tokens) * lab.model.numbers_per_token
    own = max(one.own or 0 for one in mine)
    return {
        "ms": round(statistics.median(times.values()) * 1e3, 1) if times else None,
        "of_prefill": round(statistics.median(shares), 4) if shares else None,
        "copy_mib": _mib(own if mine[0].method == ROLE_LAST else whole),
        "factors_mib": _mib(own),
        "stored_mib": _mib(max(one.stored for one in mine)),
    }


def _mib(numbers: int) -> float:
    return round(numbers * SERVED_BYTES / 2**20, 3)


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
