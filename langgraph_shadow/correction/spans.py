"""The KV cache of a stretch of tokens, and moving it to other positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """A rotary position embedding with constant frequencies.

    Attributes:
        frequencies: Radians per position, shape [D/2].
    """

    frequencies: torch.Tensor

    def rotate(self, keys: torch.Tensor, shift: int | torch.Tensor) -> torch.Tensor:
        """Keys as they would be if their tokens stood elsewhere.

        Args:
            keys: Shape [..., n, H, D], rotated to some positions.
            shift: Positions to move by: one number for all tokens, or one per token, shape [n].
        """
        # In double precision: at position 30 000 a float has lost the third digit of the angle.
        turn = torch.as_tensor(shift, dtype=torch.float64, device=keys.device)
        frequencies = self.frequencies.to(device=keys.device, dtype=torch.float64)
        angles = (turn[..., None] * frequencies).unsqueeze(-2)
        cos, sin = angles.cos().to(keys.dtype), angles.sin().to(keys.dtype)
        first, second = keys.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Keys and values of a stretch of tokens, in every layer.

    Attributes:
        keys: Shape [L, n, H, D], rotated as if the first token stood at `start`.
        values: Shape [L, n, H, D].
        start: Position of the first token; 0 is the canonical frame.
    """

    keys: torch.Tensor
    values: torch.Tensor
    start: int = 0

    def __len__(self) -> int:
        return int(self.keys.shape[1])

    def moved(self, start: int, rope: Rope) -> Span:
        """The same span with its keys rotated to another position; values have no position."""
        if start == self.start:
            return self
        return Span(rope.rotate(self.keys, start - self.start), self.values, start)

    def lying_at(self, start: int) -> Span:
        """The same numbers, only called by another position: the keys stay as they were."""
        return replace(self, start=start)

    def then(self, later: Span) -> Span:
        """This span and the one that follows it, as one."""
        keys = torch.cat((self.keys, later.keys), dim=1)
        return Span(keys, torch.cat((self.values, later.values), dim=1), self.start)

    def part(self, begin: int, end: int) -> Span:
        """The tokens from `begin` up to `end`, counted inside the span."""
        return Span(self.keys[:, begin:end], self.values[:, begin:end], self.start + begin)

    def to(self, device: torch.device | str) -> Span:
        """The same span on another device."""
        return Span(self.keys.to(device), self.values.to(device), self.start)

    def plus(self, keys: torch.Tensor, values: torch.Tensor) -> Span:
        """The span with something added to it, each [L, n, H·D]."""
        added = (part.reshape(self.keys.shape).to(self.keys.dtype) for part in (keys, values))
        return Span(self.keys + next(added), self.values + next(added), self.start)


def rows(tensor: torch.Tensor) -> torch.Tensor:
    """Keys or values [L, n, H, D] as matrices [L, n, H·D], in single precision at least."""
    return tensor.flatten(-2).to(torch.promote_types(tensor.dtype, torch.float32))


def difference(exact: Span, base: Span, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
    """What `exact` has more than `base`, in the canonical frame.

    Returns:
        ΔK and ΔV, each [L, n, H·D].
    """
    there, here = exact.moved(0, rope), base.moved(0, rope)
    return rows(there.keys) - rows(here.keys), rows(there.values) - rows(here.values)
