"""What the difference between two agents' caches looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from langgraph_shadow.correction.lab import Lab
from langgraph_shadow.correction.lowrank import principal
from langgraph_shadow.correction.spans import difference, rows

RANKS = (1, 4, 8, 16, 32, 64)
FIRST = 16


def spectrum_rows(lab: Lab, say: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """One row for each hop of the chain, for keys and for values; means over the contexts."""
    found = []
    names = [role.name for role in lab.prompts.roles]
    for agent in range(1, len(names)):
        say(f"difference: {names[agent - 1]} to {names[agent]}")
        per_context = [_sizes(lab, c, agent) for c in range(len(lab.prompts.contexts))]
        alike = _likeness(lab, agent) if len(per_context) > 1 else (None, None)
        for place, part in enumerate(("K", "V")):
            sizes = [both[place] for both in per_context]
            mean = {key: sum(size[key] for size in sizes) / len(sizes) for key in sizes[0]}
            row = {"part": "difference", "hop": f"{names[agent - 1]} → {names[agent]}", "of": part}
            found.append({**row, **_rounded(mean), "cosine": alike[place]})
    return found


def _sizes(lab: Lab, context: int, agent: int) -> tuple[dict[str, float], dict[str, float]]:
    """Relative size, where it is, and how much of it each rank holds; for keys and values."""
    rope = lab.model.rope
    exact, base = lab.exact(context, agent), lab.exact(context, agent - 1)
    # Layer 0 has no difference but rounding, whose spectrum would be counted as one.
    deltas = [delta[1:] for delta in difference(exact, base, rope)]
    wholes = [rows(exact.keys)[1:], rows(exact.values)[1:]]
    lying = rows(exact.keys - base.lying_at(exact.start).keys)[1:]
    found = []
    for place, (delta, whole) in enumerate(zip(deltas, wholes, strict=True)):
        energies = principal(delta)[0]
        total = energies.sum(-1).clamp_min(1e-30)
        half = delta.shape[1] // 2
        sizes = {
            "relative": _ratio(delta, whole),
            "not_rotated": _ratio(lying, whole) if place == 0 else _ratio(delta, whole),
            f"first_{FIRST}_tokens": _ratio(delta[:, :FIRST], whole[:, :FIRST]),
            "second_half": _ratio(delta[:, half:], whole[:, half:]),
        }
        for rank in RANKS:
            sizes[f"rank_{rank}"] = (energies[..., :rank].sum(-1) / total).mean().item()
        found.append(sizes)
    return found[0], found[1]


def _likeness(lab: Lab, agent: int) -> tuple[float, float]:
    """Mean cosine between the differences of two contexts, each row against the same row."""
    count = len(lab.prompts.contexts)
    grams: list[torch.Tensor | float] = [0.0, 0.0]
    pairs = [(lab.exact(c, agent), lab.exact(c, agent - 1)) for c in range(count)]
    deltas = [difference(exact, base, lab.model.rope) for exact, base in pairs]
    for place in range(2):
        for layer in range(lab.model.layers):
            flat = torch.stack([delta[place][layer].flatten() for delta in deltas]).double()
            grams[place] = grams[place] + flat @ flat.T
    return _off_diagonal(grams[0]), _off_diagonal(grams[1])


def _off_diagonal(gram: Any) -> float:
    size = gram.diagonal().sqrt()
    cosines = gram / (size[:, None] * size[None, :]).clamp_min(1e-30)
    count = len(cosines)
    mean = (cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1))
    return round(float(mean), 3)


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> float:
    return float(part.norm() / whole.norm())


def _rounded(row: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in row.items()}
