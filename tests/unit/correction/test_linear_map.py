"""The reduced-rank map: exact where the difference is linear, and never of a higher rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from langgraph_shadow.correction.linear_map import LinearMap, fit, observe
from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.rotated import Rotated
from langgraph_shadow.correction.spans import Span
from tests.unit.correction.conftest import Case

Make = Callable[..., Case]


def linear(case: Case, rank: int) -> Span:
    """What another agent would have if its values were a linear function of these, plus a mean."""
    generator = torch.Generator().manual_seed(5)
    source = case.hop.source
    values = source.values.flatten(-2)
    left = torch.randn(3, values.shape[-1], rank, generator=generator) / 5
    right = torch.randn(3, rank, values.shape[-1], generator=generator) / 5
    changed = values + values @ left @ right + 0.5 * right.sum(1, keepdim=True)
    return Span(source.keys, changed.reshape(source.values.shape), source.start)


def fitted(model: LabModel, cases: list[Case], exact: list[Span], rank: int) -> LinearMap:
    pairs = zip(cases, exact, strict=True)
    sums = [observe(case.hop.source, span, model.rope) for case, span in pairs]
    return LinearMap({"critic": fit(sums, rank=rank, ridge=1e-6)}, rank)


def test_a_linear_difference_is_found_in_contexts_that_were_not_seen(
    model: LabModel, case: Make
) -> None:
    cases = [case(model, seed=seed) for seed in (11, 12, 13)]
    mapped = fitted(model, cases, [linear(made, 3) for made in cases], rank=4)
    new = case(model, seed=14)
    found = mapped.apply(new.hop)
    exact = linear(new, 3).moved(9, model.rope)
    assert torch.allclose(found.values, exact.values, atol=2e-2)
    assert torch.allclose(found.keys, exact.keys, atol=2e-2)
    assert (found.values - Rotated().apply(new.hop).values).abs().max() > 0.1


def test_a_map_of_rank_one_has_rank_one(llama: LabModel, case: Make) -> None:
    cases = [case(llama, seed=seed) for seed in (11, 12)]
    mapped = fitted(llama, cases, [made.exact for made in cases], rank=1)
    hop = cases[0].hop
    added = (mapped.apply(hop).values - Rotated().apply(hop).values).flatten(-2)
    assert all(torch.linalg.matrix_rank(layer, rtol=1e-4) <= 1 for layer in added)


def test_a_higher_rank_fits_better(llama: LabModel, case: Make) -> None:
    cases = [case(llama, seed=seed) for seed in range(11, 15)]
    errors = []
    for rank in (1, 6, 24):
        mapped = fitted(llama, cases, [made.exact for made in cases], rank)
        errors.append(
            sum(
                float((mapped.apply(made.hop).values - made.exact.values).square().sum())
                for made in cases
            )
        )
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.01 * errors[-1]


def test_keys_are_mapped_without_their_rotation(llama: LabModel, case: Make) -> None:
    """The same tokens at other positions get the same correction."""
    cases = [case(llama, seed=seed) for seed in (11, 12)]
    mapped = fitted(llama, cases, [made.exact for made in cases], rank=6)
    hop = cases[0].hop
    elsewhere = replace(hop, source=hop.source.moved(300, llama.rope))
    assert torch.allclose(mapped.apply(hop).keys, mapped.apply(elsewhere).keys, atol=1e-3)


def test_an_unknown_agent_gets_rotated_reuse(llama: LabModel, case: Make) -> None:
    made = case(llama)
    found = LinearMap({}, 4).apply(made.hop)
    assert torch.equal(found.keys, Rotated().apply(made.hop).keys)


@pytest.mark.parametrize("rank", [2, 5])
def test_memory_is_counted(llama: LabModel, case: Make, rank: int) -> None:
    made = case(llama)
    mapped = fitted(llama, [made], [made.exact], rank)
    assert mapped.stored_numbers() == 2 * 3 * rank * (25 + 24)
    assert mapped.own_numbers(made.hop) == 2 * 3 * rank * 20
