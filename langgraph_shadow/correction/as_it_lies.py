"""Reuse as it lies: the cache is taken over with its keys at the positions where they were made."""

from __future__ import annotations

from dataclasses import dataclass

from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Span


@dataclass(frozen=True, slots=True)
class AsItLies:
    """Nothing is done: right only where both role prompts have the same length and words."""

    name: str = "as it lies"

    def apply(self, hop: Hop) -> Span:
        """The source's numbers, called by the new positions."""
        return hop.source.lying_at(hop.offset)

    def own_numbers(self, hop: Hop) -> int:
        """None: every agent reads the same cache."""
        return 0

    def stored_numbers(self) -> int:
        """Nothing is kept."""
        return 0
