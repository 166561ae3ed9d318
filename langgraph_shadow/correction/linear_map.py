"""A reduced-rank linear map from a reused cache to what it lacks, fitted on earlier dense hops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as functional

from langgraph_shadow.correction.lowrank import Factors
from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Rope, Span, rows


@dataclass(frozen=True, slots=True)
class Sums:
    """What a least-squares fit needs to know of one dense hop, for keys or for values.

    Attributes:
        gram: XᵀX of the reused rows with a constant 1 behind them, [L, m+1, m+1].
        cross: Xᵀ·Δ, [L, m+1, m].
    """

    gram: torch.Tensor
    cross: torch.Tensor


Observed = tuple[Sums, Sums]
"""Of the keys and of the values of one dense hop."""


@dataclass(frozen=True, slots=True)
class LinearMap:
    """Rotated reuse plus a linear function of each token's own reused keys and values.

    Unlike an anchor it does not look at the token's place, only at what the token looks like.
    Keys are mapped in the frame without rotation, where a token looks the same at every place.

    Attributes:
        maps: By agent, the maps of keys and of values, each [L, m+1, r] and [L, r, m].
        rank: Of each map.
    """

    maps: Mapping[str, tuple[Factors, Factors]]
    rank: int

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"ridge map r={self.rank}"

    def apply(self, hop: Hop) -> Span:
        """The rotated cache plus the mapped correction; rotated only for an unknown agent."""
        if hop.agent not in self.maps:
            return hop.rotated()
        rope = hop.model.rope
        plain = _unrotated(hop.source, rope)
        for_keys, for_values = self.maps[hop.agent]
        corrected = plain.plus(
            _features(plain.keys) @ for_keys.left @ for_keys.right,
            _features(plain.values) @ for_values.left @ for_values.right,
        )
        places = torch.arange(len(plain), device=plain.keys.device) + hop.offset
        return replace(corrected, keys=rope.rotate(corrected.keys, places), start=hop.offset)

    def own_numbers(self, hop: Hop) -> int:
        """The mapped tokens between the two factors, of keys and values in every layer."""
        return 2 * hop.model.layers * self.rank * len(hop.tokens)

    def stored_numbers(self) -> int:
        """Numbers in all maps."""
        return sum(part.numbers() for pair in self.maps.values() for part in pair)


def observe(base: Span, exact: Span, rope: Rope) -> Observed:
    """The sums of one dense hop; those of several hops are added.

    Args:
        base: The context's cache before the hop.
        exact: The same context behind the taking agent's role prompt.
        rope: The model's position embedding.
    """
    before, after = _unrotated(base, rope), _unrotated(exact, rope)
    return (_sums(before.keys, after.keys), _sums(before.values, after.values))


def fit(observed: Sequence[Observed], *, rank: int, ridge: float) -> tuple[Factors, Factors]:
    """The maps of keys and of values with the least squared error at a rank.

    Args:
        observed: At least one dense hop.
        rank: Of each map.
        ridge: Penalty on the map, in units of the mean squared feature.
    """
    keys = _fit([one[0] for one in observed], rank, ridge)
    return keys, _fit([one[1] for one in observed], rank, ridge)


def _fit(sums: Sequence[Sums], rank: int, ridge: float) -> Factors:
    gram = torch.stack([one.gram for one in sums]).sum(0).double()
    cross = torch.stack([one.cross for one in sums]).sum(0).double()
    scale = gram.diagonal(dim1=-2, dim2=-1)[..., :-1].mean(-1)
    penalty = torch.ones(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    penalty[-1] = 1e-6  # the constant is a mean, and means are not shrunk
    penalised = gram + torch.diag_embed(ridge * scale[:, None] * penalty)
    whole = torch.linalg.solve(penalised, cross)
    # The best map of a lower rank keeps the directions in which the fitted values are largest.
    vectors = torch.linalg.eigh(whole.mT @ penalised @ whole).eigenvectors.flip(-1)[..., :rank]
    return Factors((whole @ vectors).to(sums[0].gram.dtype), vectors.mT.to(sums[0].gram.dtype))


def _sums(before: torch.Tensor, after: torch.Tensor) -> Sums:
    features = _features(before)
    return Sums(features.mT @ features, features.mT @ (rows(after) - rows(before)))


def _features(part: torch.Tensor) -> torch.Tensor:
    return functional.pad(rows(part), (0, 1), value=1.0)


def _unrotated(span: Span, rope: Rope) -> Span:
    """Every token's keys as if it stood at position 0."""
    places = torch.arange(len(span), device=span.keys.device) + span.start
    return Span(rope.rotate(span.keys, -places), span.values)
