"""Matrices kept as two thin factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """One matrix a layer, as `left @ right`.

    Attributes:
        left: Shape [L, n, r].
        right: Shape [L, r, m].
    """

    left: torch.Tensor
    right: torch.Tensor

    def whole(self) -> torch.Tensor:
        """The matrices, [L, n, m]."""
        return self.left @ self.right

    def numbers(self) -> int:
        """How many numbers are kept."""
        return int(self.left.numel() + self.right.numel())


def best(matrices: torch.Tensor, rank: int) -> Factors:
    """The nearest matrices of a rank (Eckart-Young), [L, n, m]; exact at full rank."""
    directions = principal(matrices)[1][..., :rank].to(matrices.dtype)
    return Factors(matrices @ directions, directions.mT)


def principal(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared singular values [L, m] and right singular vectors [L, m, m], largest first.

    By way of the Gram matrix in double precision: m is small here and n may be long.
    """
    wide = matrices.double()
    energies, vectors = torch.linalg.eigh(wide.mT @ wide)
    return energies.flip(-1).clamp_min(0.0), vectors.flip(-1)


def range_finder(matrices: torch.Tensor, rank: int, *, seed: int = 0, powers: int = 2) -> Factors:
    """Nearly the nearest matrices of a rank, by a randomised range finder.

    All layers are treated in one batch: random directions, power iterations, and an orthonormal
    basis `Q` of what they reach; the factors are `Q` and `Qᵀ·matrices`.

    Args:
        matrices: Shape [L, n, m].
        rank: At most min(n, m) is used.
        seed: Of the random directions.
        powers: Power iterations.
    """
    rank = min(rank, *matrices.shape[-2:])
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(matrices.shape[-1], rank, generator=generator)
    basis = _orthonormal(matrices @ start.to(matrices))
    for _ in range(powers):
        basis = _orthonormal(matrices @ _orthonormal(matrices.mT @ basis))
    return Factors(basis, basis.mT @ matrices)


def fused(parts: Sequence[Factors], weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of several low-rank matrices, as one product a layer.

    Args:
        parts: The factors; their rows beyond `n` are left out.
        weights: Of each part for each row, shape [parts, n].

    Returns:
        Shape [L, n, m].
    """
    count = weights.shape[1]
    left = [part.left[:, :count] * row[:, None] for part, row in zip(parts, weights, strict=True)]
    return torch.cat(left, dim=-1) @ torch.cat([part.right for part in parts], dim=1)


def _orthonormal(columns: torch.Tensor) -> torch.Tensor:
    # A batched QR is many times slower than two Cholesky passes, and as good after the second.
    for _ in range(2):
        gram = columns.mT @ columns
        mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        factor, failed = torch.linalg.cholesky_ex(gram + 1e-6 * mean * eye)
        if bool(failed.any()):
            return torch.linalg.qr(columns).Q
        columns = torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)
    return columns
