"""A recommendation in words, and what the lab does otherwise than the published methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SMALL = 0.1
"""A method that loses no more than this share of the role's effect is called good enough."""

HALF = 0.5

MORE = 1.05
"""Closer than this, two KLs are called the same."""

DEVIATIONS = (
    "first tokens: as EPIC's LegoLink, but for one context behind a role prompt, without its "
    "chunks that were encoded alone.",
    "most deviating: in CacheBlend's manner, but the tokens are picked once, after the first "
    "layer, by keys and values together; CacheBlend narrows its choice layer by layer and hides "
    "the recompute behind loading.",
    "KVCMAS: differences are kept in the canonical frame, which has the same ranks; only anchors "
    "at least as long as the context are used; nothing but the context is corrected, so there is "
    "no difference for template text after it; corrections are added to a copy, not inside the "
    "attention kernel.",
    "KVCMAS rule: the gate is off, and the anchors are all other contexts (or the first of them) "
    "with exact caches on both sides. KVCMAS, gated: contexts come one after the other, the pool "
    "begins empty, and a hop with fewer than two anchors is dense.",
    "ridge map and ceilings: no published method.",
)


def recommend(
    hops: Sequence[Mapping[str, Any]],
    chains: Sequence[Mapping[str, Any]],
    *,
    agents: int,
    tokens: int,
) -> list[str]:
    """Sentences that follow from the rows.

    Args:
        hops: Rows of the first hop.
        chains: Rows of the chain.
        agents: Agents in the chain.
        tokens: Tokens of a context.
    """
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for row in hops:
        by_kind.setdefault(row["kind"], []).append(row)
    said = [_role_last(row, tokens) for row in by_kind.get("exact", ())]
    effect = by_kind["reference"][0]
    floor = max((row["worst_kl"] for row in by_kind.get("sanity", ())), default=0.0)
    if effect["kl"] <= 10 * floor:
        said.append(
            "The role in front changes the predictions no more than rounding does: with these "
            "roles and contexts nothing can be said about reuse."
        )
        return said
    methods = by_kind.get("method", [])
    named = {row["method"]: row for row in methods}
    said += _plain(named["as it lies"], named["rotated"])
    said += _best(methods, named["rotated"])
    said += _anchors(methods, named["rotated"])
    said += [_gated(row) for row in methods if "dense_share" in row]
    said += [_room(row, named["rotated"]) for row in by_kind.get("ceiling", ())[-1:]]
    if agents > 2:
        said += _chain(chains, agents)
    return said


def loss(row: Mapping[str, Any]) -> float:
    """Share of the role's effect that a method loses: the larger one of text and answer."""
    return float(max(row["share_of_role"], row.get("answer_share") or 0.0))


def _role_last(row: Mapping[str, Any], tokens: int) -> str:
    return (
        "Put the role behind the context where you can: that is exact (KL at most "
        f"{row['worst_kl']:.1g}) and costs {row['of_prefill']:.0%} of a prefill of {tokens} tokens "
        f"and {row['copy_mib']:.2f} MiB for each agent."
    )


def _plain(lying: Mapping[str, Any], rotated: Mapping[str, Any]) -> list[str]:
    said = []
    if lying["kl"] > MORE * rotated["kl"]:
        said.append(
            "Never take a cache over as it lies: its KL is "
            f"{lying['kl'] / rotated['kl']:.1f} times that with rotated keys."
        )
    said.append(f"Rotated reuse loses {loss(rotated):.0%} of the role's effect.")
    return said


def _best(methods: Sequence[Mapping[str, Any]], rotated: Mapping[str, Any]) -> list[str]:
    # The gated run is dense in part: its mean is no property of the reuse.
    ranked = sorted((row for row in methods if "dense_share" not in row), key=loss)
    best = ranked[0]
    lost = loss(best)
    what = f"{best['method']} loses least, {lost:.0%}, for {best['of_prefill']:.0%} of a prefill"
    if best is rotated:
        what = "no correction does better than rotated reuse"
    if lost <= SMALL:
        then = "If the role must stay in front, that is good enough here."
    elif lost <= HALF:
        then = (
            "If the role must stay in front, that is a compromise: prefill where the role "
            "decides something."
        )
    else:
        then = (
            "If the role must stay in front, prefill: more than half of what it is worth is lost."
        )
    return [f"Of what can be run, {what}. {then}"]


def _anchors(methods: Sequence[Mapping[str, Any]], rotated: Mapping[str, Any]) -> list[str]:
    rule = [row for row in methods if row["method"].startswith("KVCMAS rule")]
    if not rule:
        return ["Corrections that are learned from other contexts need two contexts at least."]
    row = rule[-1]
    gain = 1 - loss(row) / loss(rotated)
    if gain <= MORE - 1:
        verdict = "on these contexts it is not worth its storage"
    else:
        verdict = f"it takes away {gain:.0%} of what rotated reuse loses"
    return [f"{row['method']}: {verdict} ({row['stored_mib']:.1f} MiB kept for each agent)."]


def _gated(row: Mapping[str, Any]) -> str:
    dense = f"{row['method']}: {row['dense_share']:.0%} of the hops were dense"
    if row["reused_kl"] is None:
        return f"{dense}; the gate saved nothing."
    return f"{dense}, the others had a mean KL of {row['reused_kl']:.2g}."


def _room(ceiling: Mapping[str, Any], rotated: Mapping[str, Any]) -> str:
    return (
        f"A perfect prediction of the difference would take away "
        f"{1 - ceiling['kl'] / rotated['kl']:.0%} of the KL ({ceiling['method']}): the difference "
        "can be stored, the question is how to predict it."
    )


def _chain(chains: Sequence[Mapping[str, Any]], agents: int) -> list[str]:
    rows = [row for row in chains if row["kind"] == "method" and f"dense_{agents}" not in row]
    if not rows:
        return []
    parts = [
        f"{row['method']} {row['share_2']:.0%} to {row[f'share_{agents}']:.0%}" for row in rows
    ]
    return [
        f"From 2 to {agents} agents the share of the role's effect that is lost goes: "
        + ", ".join(parts)
        + "."
    ]
