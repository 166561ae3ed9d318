"""Reuse with keys rotated to the new positions."""

from __future__ import annotations

from dataclasses import dataclass

from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Span


@dataclass(frozen=True, slots=True)
class Rotated:
    """Keys are turned by the difference of the positions; what the role did to them stays."""

    name: str = "rotated"

    def apply(self, hop: Hop) -> Span:
        """The source's cache at the new positions."""
        return hop.rotated()

    def own_numbers(self, hop: Hop) -> int:
        """None: the angle is the same for all tokens."""
        return 0

    def stored_numbers(self) -> int:
        """Nothing is kept."""
        return 0
