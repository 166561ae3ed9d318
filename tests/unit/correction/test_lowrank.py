"""Low-rank factors: exact at full rank, nearly the best below it, and summed in one product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.correction.lowrank import Factors, best, fused, principal, range_finder

LAYERS, ROWS, COLUMNS = 2, 18, 8
SEED = st.integers(0, 10_000)


def matrices(seed: int, rank: int = COLUMNS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(LAYERS, ROWS, rank, generator=generator)
    return left @ torch.randn(LAYERS, rank, COLUMNS, generator=generator)


@given(SEED)
def test_full_rank_is_exact(seed: int) -> None:
    whole = matrices(seed)
    assert torch.allclose(best(whole, COLUMNS).whole(), whole, atol=1e-4)
    assert torch.allclose(range_finder(whole, COLUMNS).whole(), whole, atol=1e-3)


@given(SEED, st.integers(1, COLUMNS))
def test_the_best_rank_leaves_the_smallest_singular_values(seed: int, rank: int) -> None:
    whole = matrices(seed)
    left = (whole - best(whole, rank).whole()).double().norm(dim=(1, 2))
    singular = torch.linalg.svdvals(whole.double())
    assert torch.allclose(left, singular[:, rank:].norm(dim=1), atol=1e-4)
    assert torch.allclose(principal(whole)[0], singular.square(), rtol=1e-6, atol=1e-6)


@given(SEED, st.integers(1, COLUMNS))
def test_the_range_finder_finds_what_has_the_rank(seed: int, rank: int) -> None:
    whole = matrices(seed, rank)
    found = range_finder(whole, rank, seed=seed)
    assert (found.whole() - whole).norm() <= 1e-2 * whole.norm()
    assert found.numbers() == LAYERS * rank * (ROWS + COLUMNS)


@given(SEED, st.integers(1, COLUMNS - 1))
def test_the_range_finder_is_nearly_the_best(seed: int, rank: int) -> None:
    whole = matrices(seed)
    found = (whole - range_finder(whole, rank).whole()).norm()
    ideal = (whole - best(whole, rank).whole()).norm()
    assert ideal - 1e-4 <= found <= 2.0 * ideal


def test_the_range_finder_is_reproducible() -> None:
    one, again = (range_finder(matrices(1), 3, seed=5) for _ in range(2))
    assert torch.equal(one.left, again.left)
    assert not torch.equal(one.left, range_finder(matrices(1), 3, seed=6).left)


def test_nothing_has_no_range() -> None:
    assert range_finder(torch.zeros(LAYERS, ROWS, COLUMNS), 3).whole().abs().max() == 0


@given(SEED, st.integers(1, 4), st.integers(1, ROWS))
def test_one_product_is_the_weighted_sum(seed: int, count: int, rows: int) -> None:
    parts = [range_finder(matrices(seed + n), 3) for n in range(count)]
    weights = torch.rand(count, rows, generator=torch.Generator().manual_seed(seed))
    one_by_one = sum(
        row[None, :, None] * part.whole()[:, :rows]
        for part, row in zip(parts, weights, strict=True)
    )
    assert torch.allclose(fused(parts, weights), torch.as_tensor(one_by_one), atol=1e-4)


def test_each_part_has_its_weights() -> None:
    part = Factors(torch.ones(1, 2, 1), torch.ones(1, 1, 1))
    with pytest.raises(ValueError, match="zip"):
        fused([part], torch.ones(2, 2))
