"""What KVCMAS keeps of a dense hop: the difference it made, and what the context looked like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from langgraph_shadow.correction.lowrank import Factors, range_finder
from langgraph_shadow.correction.spans import Rope, Span, difference, rows


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """One dense hop, as low-rank factors.

    Layer 0 has no difference once its keys are rotated, so the corrections begin at layer 1.

    Attributes:
        keys: ΔK in the canonical frame, layers from 1 on.
        values: ΔV.
        base_keys: The context's keys before the hop, canonical frame, all layers.
        base_values: The context's values before the hop.
    """

    keys: Factors
    values: Factors
    base_keys: Factors
    base_values: Factors

    def __len__(self) -> int:
        return int(self.base_values.left.shape[1])

    def numbers(self) -> int:
        """How many numbers are kept."""
        kept = (self.keys, self.values, self.base_keys, self.base_values)
        return sum(factors.numbers() for factors in kept)


def anchor(
    base: Span, exact: Span, rope: Rope, *, rank: int = 32, base_rank: int = 32, seed: int = 0
) -> Anchor:
    """Keep a dense hop.

    Args:
        base: The context's cache before the hop.
        exact: The same context behind the taking agent's role prompt.
        rope: The model's position embedding.
        rank: Of the differences.
        base_rank: Of the cache before the hop, which is kept to find similar contexts.
        seed: Of the range finder.
    """
    keys, values = (part[1:] for part in difference(exact, base, rope))
    canonical = base.moved(0, rope)
    return Anchor(
        keys=range_finder(keys, rank, seed=seed),
        values=range_finder(values, rank, seed=seed),
        base_keys=range_finder(rows(canonical.keys), base_rank, seed=seed),
        base_values=range_finder(rows(canonical.values), base_rank, seed=seed),
    )


def token_weights(bases: Sequence[Factors], now: torch.Tensor) -> torch.Tensor:
    """How much each anchor counts for each token: softmax of minus the mean distance.

    Args:
        bases: What the anchors' contexts looked like, [L, n, m].
        now: What this one looks like, [L, n, m].

    Returns:
        Shape [anchors, n]; each column sums to 1.
    """
    count = now.shape[1]
    apart = [(now - base.whole()[:, :count]).abs().float().mean(dim=(0, 2)) for base in bases]
    return torch.stack(apart).neg().softmax(dim=0).to(now.dtype)


def value_distances(bases: Sequence[Factors], now: torch.Tensor) -> torch.Tensor:
    """Euclidean distance of the values to each anchor's, over all layers and tokens, [anchors]."""
    count = now.shape[1]
    return torch.stack([(now - base.whole()[:, :count]).float().norm() for base in bases])
