"""The exact difference at a rank: the ceiling of every low-rank correction."""

from __future__ import annotations

from dataclasses import dataclass

from langgraph_shadow.correction.lowrank import best
from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Span, difference


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Rotated reuse plus the best low-rank approximation of what it really lacks.

    It looks at the exact cache, so it is no method: it says what a perfect prediction of the
    difference would be worth at this rank.

    Attributes:
        rank: Of ΔK and of ΔV in each layer; `None` for the full rank.
    """

    rank: int | None = 32

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"ceiling r={'full' if self.rank is None else self.rank}"

    def apply(self, hop: Hop) -> Span:
        """The source's cache, corrected by the truncated difference."""
        base = hop.source.moved(0, hop.model.rope)
        rank = hop.model.heads * hop.model.head_dim if self.rank is None else self.rank
        keys, values = difference(hop.dense(), base, hop.model.rope)
        corrected = base.plus(best(keys, rank).whole(), best(values, rank).whole())
        return corrected.moved(hop.offset, hop.model.rope)

    def own_numbers(self, hop: Hop) -> int:
        """The factors of ΔK and ΔV in every layer."""
        width = hop.model.heads * hop.model.head_dim
        rank = min(width, self.rank or width)
        return 2 * hop.model.layers * rank * (len(hop.tokens) + width)

    def stored_numbers(self) -> int:
        """Nothing is kept for other requests: the difference belongs to one."""
        return 0
