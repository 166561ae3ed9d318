"""Rotated reuse with the most deviating tokens computed anew."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Span


@dataclass(frozen=True, slots=True)
class Deviating:
    """Recompute of the tokens whose cache deviates most after one layer, in CacheBlend's manner.

    Every token is taken through the first layer behind the new role; where its keys and values
    in the second layer differ most from the reused ones, it goes on through all layers.

    Attributes:
        share: Share of the context's tokens to recompute, 0 to 1.
    """

    share: float = 0.15

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.share:.0%} most deviating"

    def apply(self, hop: Hop) -> Span:
        """The rotated cache with the chosen tokens recomputed."""
        model, prefix, span = hop.model, hop.prefix, hop.rotated()
        count = math.ceil(self.share * len(hop.tokens))
        with torch.inference_mode():
            positions = torch.arange(len(hop.tokens), device=model.device) + len(prefix)
            whole = prefix.then(span)
            keys, values = whole.keys.clone(), whole.values.clone()
            hidden = model.network.model.embed_tokens(hop.tokens.to(model.device))[None]
            hidden = model.through(0, 1, hidden, positions, keys, values)
            if model.layers > 1:
                deviation = self._deviation(hop, hidden, positions, span)
                chosen = deviation.topk(count).indices.sort().values
                model.through(1, model.layers, hidden[:, chosen], positions[chosen], keys, values)
        return Span(keys, values).part(len(prefix), len(whole))

    def own_numbers(self, hop: Hop) -> int:
        """The recomputed tokens."""
        return math.ceil(self.share * len(hop.tokens)) * hop.model.numbers_per_token

    def stored_numbers(self) -> int:
        """Nothing is kept."""
        return 0

    @staticmethod
    def _deviation(
        hop: Hop, hidden: torch.Tensor, positions: torch.Tensor, span: Span
    ) -> torch.Tensor:
        """Squared distance per token, keys and values each in units of their own size, [n]."""
        deviation = torch.zeros(len(positions), device=hidden.device)
        reused = (span.keys[1], span.values[1])
        for new, old in zip(hop.model.key_value(1, hidden, positions), reused, strict=True):
            apart = (new - old).float().flatten(1).square().sum(-1)
            deviation += apart / old.float().square().mean()
        return deviation
