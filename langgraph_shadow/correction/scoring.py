"""How far predictions moved: KL divergence and top-1 agreement."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Score:
    """Predictions on an approximated cache against those on the exact one.

    Attributes:
        kl: Mean KL(exact ‖ approximated) over the positions, in nats.
        top1: Share of positions whose likeliest token is the same, 0 to 1.
    """

    kl: float
    top1: float


def compare(exact: torch.Tensor, approximated: torch.Tensor) -> Score:
    """Compare two sets of logits, each [positions, vocabulary]."""
    with torch.inference_mode():
        p = exact.double().log_softmax(dim=-1)
        q = approximated.double().log_softmax(dim=-1)
        kl = (p.exp() * (p - q)).sum(dim=-1).mean().item()
        same = (exact.argmax(dim=-1) == approximated.argmax(dim=-1)).double().mean().item()
    # Two equal distributions may come out at -1e-17.
    return Score(max(0.0, kl), same)
