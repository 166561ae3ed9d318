"""KVCMAS: when it computes, what it keeps, and how it corrects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.correction.anchors import Anchor, anchor, token_weights
from langgraph_shadow.correction.kvcmas import Kvcmas
from langgraph_shadow.correction.lowrank import range_finder
from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.rotated import Rotated
from langgraph_shadow.correction.spans import Span
from tests.unit.correction.conftest import Case

Make = Callable[..., Case]
FULL = 24


def of(case: Case, rank: int = FULL) -> Anchor:
    hop = case.hop
    return anchor(hop.source, case.exact, hop.model.rope, rank=rank, base_rank=rank)


def given_anchors(*cases: Case, rank: int = FULL) -> Kvcmas:
    return Kvcmas(gate=None, anchors={"critic": [of(case, rank) for case in cases]})


def same(one: Span, other: Span) -> bool:
    close = torch.allclose(one.keys, other.keys, atol=2e-3)
    return close and torch.allclose(one.values, other.values, atol=2e-3)


def test_a_context_that_is_an_anchor_is_exact(model: LabModel, case: Make) -> None:
    made = case(model)
    assert same(given_anchors(made).apply(made.hop), made.exact)
    assert not same(Rotated().apply(made.hop), made.exact)


def test_without_anchors_it_is_rotated_reuse(llama: LabModel, case: Make) -> None:
    made = case(llama)
    assert same(Kvcmas(gate=None).apply(made.hop), Rotated().apply(made.hop))


def test_the_correction_is_the_weighted_sum_of_the_anchors(llama: LabModel, case: Make) -> None:
    made, others = case(llama), [case(llama, seed=seed) for seed in (11, 12, 13)]
    kvcmas = given_anchors(*others, rank=4)
    corrected = kvcmas.apply(made.hop).moved(0, llama.rope)
    base = made.hop.source.moved(0, llama.rope)
    kept = kvcmas.anchors("critic")
    weights = token_weights([one.base_values for one in kept], base.values.flatten(-2))
    summed = sum(
        weight[None, :, None] * one.values.whole()
        for weight, one in zip(weights, kept, strict=True)
    )
    added = (corrected.values - base.values).flatten(-2)
    assert torch.allclose(added[1:], torch.as_tensor(summed), atol=1e-4)
    assert torch.equal(corrected.values[0], base.values[0]), "layer 0 is right once it is rotated"


def test_nearer_anchors_count_more_token_by_token() -> None:
    now = torch.zeros(2, 4, 6)
    far = now.clone()
    far[:, 2:] += 3.0
    weights = token_weights([range_finder(now, 6), range_finder(far, 6)], now)
    assert torch.allclose(weights[:, :2], torch.full((2, 2), 0.5), atol=1e-4)
    assert (weights[0, 2:] > 0.9).all()


@given(st.integers(1, 5), st.integers(0, 999))
def test_weights_of_a_token_sum_to_one(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    bases = [
        range_finder(torch.randn(2, 5, 6, generator=generator), 3, seed=seed) for _ in range(count)
    ]
    weights = token_weights(bases, torch.randn(2, 5, 6, generator=generator))
    assert weights.shape == (count, 5)
    assert torch.allclose(weights.sum(0), torch.ones(5), atol=1e-5)
    assert (weights >= 0).all()


def test_the_first_two_contexts_are_computed_and_leave_anchors(llama: LabModel, case: Make) -> None:
    kvcmas = Kvcmas(rank=FULL, base_rank=FULL)
    first, second = case(llama, seed=11), case(llama, seed=12)
    for made in (first, second):
        assert kvcmas.apply(made.hop) is made.exact
    assert kvcmas.dense_hops == 2
    assert len(kvcmas.anchors("critic")) == 2
    assert kvcmas.stored_numbers() == sum(of(made).numbers() for made in (first, second))


def test_a_familiar_context_is_corrected(llama: LabModel, case: Make) -> None:
    kvcmas = Kvcmas(rank=FULL, base_rank=FULL)
    for seed in (11, 12, 11):
        kvcmas.apply(case(llama, seed=seed).hop)
    assert kvcmas.hops == 3
    assert kvcmas.dense_hops == 2


def test_a_context_between_all_anchors_is_computed(llama: LabModel, case: Make) -> None:
    """Two equal anchors are equally far: the entropy is the largest one, above any gate."""
    made = case(llama)
    pool = {"critic": [of(made), of(made)]}
    strict, open_ = (Kvcmas(gate=gate, anchors=pool) for gate in (0.9, 1.0))
    assert strict.apply(made.hop) is made.exact
    assert strict.dense_hops == 1
    open_.apply(made.hop)
    assert open_.dense_hops == 0


def test_anchors_belong_to_the_agent(llama: LabModel, case: Make) -> None:
    made = case(llama)
    kvcmas = given_anchors(made)
    other = replace(made.hop, agent="writer")
    assert same(kvcmas.apply(other), Rotated().apply(made.hop))


def test_a_shorter_anchor_is_not_used(llama: LabModel, case: Make) -> None:
    short, made, long = case(llama, tokens=12), case(llama), case(llama, tokens=31)
    assert same(given_anchors(short).apply(made.hop), Rotated().apply(made.hop))
    assert not same(given_anchors(long).apply(made.hop), Rotated().apply(made.hop))


def test_a_full_pool_lets_the_least_used_of_the_oldest_go(llama: LabModel, case: Make) -> None:
    kvcmas = Kvcmas(rank=4, base_rank=FULL, pool=2)
    for seed in (11, 12):
        kvcmas.apply(case(llama, seed=seed).hop)
    used, unused = kvcmas.anchors("critic")
    kvcmas.apply(case(llama, seed=11).hop)
    kvcmas.gate = -1.0
    kvcmas.apply(case(llama, seed=13).hop)
    left = kvcmas.anchors("critic")
    assert len(left) == 2
    assert left[0] is used
    assert unused not in left


def test_memory_is_counted(llama: LabModel, case: Make) -> None:
    made, other = case(llama), case(llama, seed=11)
    kvcmas = given_anchors(made, other, rank=4)
    assert kvcmas.own_numbers(made.hop) == 2 * 20 * 2
    factors = 4 * (20 + 24)
    assert kvcmas.stored_numbers() == 2 * (2 * 2 * factors + 2 * 3 * factors)


@pytest.mark.parametrize("rank", [2, 8])
def test_an_anchor_is_smaller_than_what_it_stands_for(
    llama: LabModel, case: Make, rank: int
) -> None:
    made = case(llama)
    whole = 2 * 20 * llama.numbers_per_token
    assert of(made, rank).numbers() < whole
