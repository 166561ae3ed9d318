"""What is compared, and how strongly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of the methods; the defaults are those of the published runs where there are any.

    Attributes:
        rank: Of corrections, anchors and maps.
        low_rank: Of a second, lower ceiling.
        first: Tokens recomputed at the beginning of a context.
        share: Share of tokens recomputed where they deviate most, 0 to 1.
        ridge: Penalty of the linear map, in units of the mean squared feature.
        gate: KVCMAS's gate, as a share of the largest entropy, 0 to 1.
        seed: Of everything that is random.
    """

    rank: int = 32
    low_rank: int = 8
    first: int = 16
    share: float = 0.15
    ridge: float = 0.1
    gate: float = 0.3
    seed: int = 0
