"""Rotated reuse with the context's first tokens computed anew."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Span


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Recompute of the first `count` tokens, where a role in front has the largest effect.

    EPIC's LegoLink recomputes the first tokens of every chunk in the same manner.

    Attributes:
        count: Tokens to compute; all of a shorter context.
    """

    count: int = 16

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"first {self.count} tokens"

    def apply(self, hop: Hop) -> Span:
        """The rotated cache with its first tokens recomputed in every layer."""
        chosen = torch.arange(min(self.count, len(hop.tokens)))
        return hop.model.recompute(hop.tokens, hop.prefix, hop.rotated(), chosen)

    def own_numbers(self, hop: Hop) -> int:
        """The recomputed tokens."""
        return min(self.count, len(hop.tokens)) * hop.model.numbers_per_token

    def stored_numbers(self) -> int:
        """Nothing is kept."""
        return 0
