"""Each way of reuse: where it must be exact it is, and elsewhere it does what its name says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from langgraph_shadow.correction.as_it_lies import AsItLies
from langgraph_shadow.correction.ceiling import Ceiling
from langgraph_shadow.correction.deviating import Deviating
from langgraph_shadow.correction.first_tokens import FirstTokens
from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.reuse import Hop, Reuse
from langgraph_shadow.correction.rotated import Rotated
from langgraph_shadow.correction.scoring import compare
from langgraph_shadow.correction.spans import Span, difference
from tests.unit.correction.conftest import Case, words

Make = Callable[..., Case]
EXACT: list[Reuse] = [Deviating(1.0), FirstTokens(99), Ceiling(None)]
ALL: list[Reuse] = [AsItLies(), Rotated(), FirstTokens(3), Deviating(0.2), Ceiling(4), *EXACT]


def distance(one: Span, other: Span, model: LabModel) -> float:
    return sum(float(delta.square().sum()) for delta in difference(one, other, model.rope))


@pytest.mark.parametrize("reuse", EXACT, ids=lambda reuse: reuse.name)
def test_what_recomputes_everything_is_exact(model: LabModel, case: Make, reuse: Reuse) -> None:
    made = case(model)
    found = reuse.apply(made.hop)
    assert torch.allclose(found.keys, made.exact.keys, atol=1e-3)
    assert torch.allclose(found.values, made.exact.values, atol=1e-3)
    assert distance(Rotated().apply(made.hop), made.exact, model) > 1.0


@pytest.mark.parametrize("reuse", ALL, ids=lambda reuse: reuse.name)
def test_the_same_role_needs_no_correction(llama: LabModel, case: Make, reuse: Reuse) -> None:
    made = case(llama, same_role=True)
    assert distance(reuse.apply(made.hop), made.exact, llama) < 1e-4


@pytest.mark.parametrize("reuse", ALL, ids=lambda reuse: reuse.name)
def test_a_reused_cache_stands_behind_the_new_role(
    llama: LabModel, case: Make, reuse: Reuse
) -> None:
    made = case(llama)
    kept = made.hop.source.keys.clone()
    found = reuse.apply(made.hop)
    assert found.start == made.hop.offset == 9
    assert len(found) == 20
    assert torch.equal(made.hop.source.keys, kept), "the agent before still needs its cache"


def test_rotation_alone_mends_the_first_layer(model: LabModel, case: Make) -> None:
    made = case(model)
    rotated, lying = Rotated().apply(made.hop), AsItLies().apply(made.hop)
    assert torch.allclose(rotated.keys[0], made.exact.keys[0], atol=1e-4)
    assert torch.equal(lying.keys, made.hop.source.keys)
    assert distance(rotated, made.exact, model) < distance(lying, made.exact, model)


@pytest.mark.parametrize("count", [1, 7])
def test_first_tokens_are_exact_and_the_others_are_kept(
    llama: LabModel, case: Make, count: int
) -> None:
    made = case(llama)
    found, kept = FirstTokens(count).apply(made.hop), Rotated().apply(made.hop)
    assert torch.allclose(found.keys[:, :count], made.exact.keys[:, :count], atol=1e-4)
    assert torch.equal(found.keys[:, count:], kept.keys[:, count:])


def test_the_most_deviating_token_is_found(llama: LabModel, case: Make) -> None:
    """A cache that is right but for one token: that token is recomputed, and then all is right."""
    made = case(llama)
    wrong = made.exact.values.clone()
    wrong[1:, 13] += 5.0
    hop = replace(made.hop, source=Span(made.exact.keys, wrong, made.hop.offset))
    found = Deviating(1 / 20).apply(hop)
    assert torch.allclose(found.values, made.exact.values, atol=1e-3)


@pytest.mark.parametrize(("low", "high"), [(1, 4), (4, 12), (12, 24)])
def test_a_higher_ceiling_is_nearer(model: LabModel, case: Make, low: int, high: int) -> None:
    made = case(model)
    far, near = (distance(Ceiling(r).apply(made.hop), made.exact, model) for r in (low, high))
    assert near < far < distance(Rotated().apply(made.hop), made.exact, model)


@pytest.mark.parametrize(
    ("reuse", "numbers"),
    [
        (AsItLies(), 0),
        (Rotated(), 0),
        (FirstTokens(16), 16 * 2 * 3 * 2 * 12),
        (Deviating(0.15), 3 * 2 * 3 * 2 * 12),
        (Ceiling(8), 2 * 3 * 8 * (20 + 24)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_memory_is_counted(llama: LabModel, case: Make, reuse: Reuse, numbers: int) -> None:
    made = case(llama)
    assert reuse.own_numbers(made.hop) == numbers
    assert reuse.stored_numbers() == 0


def test_a_better_cache_predicts_better(llama: LabModel, case: Make) -> None:
    made = case(llama, tokens=40)
    later = words(10, seed=9)

    def kl(hop: Hop, cache: Span) -> float:
        exact = llama.logits(later, hop.prefix.then(made.exact), last=10)
        return compare(exact, llama.logits(later, hop.prefix.then(cache), last=10)).kl

    lying, rotated, near, exact = (
        kl(made.hop, reuse.apply(made.hop))
        for reuse in (AsItLies(), Rotated(), Ceiling(16), Ceiling(None))
    )
    assert exact < 1e-9 < near < rotated < lying


def test_scores() -> None:
    logits = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    assert compare(logits, logits + 3.0).kl < 1e-12
    assert compare(logits, logits).top1 == 1.0
    flipped = compare(logits, logits.flip(-1))
    assert flipped.top1 == 0.0
    p = torch.softmax(logits.double(), dim=-1)
    expected = (p * (p / p.flip(-1)).log()).sum(-1).mean()
    assert flipped.kl == pytest.approx(float(expected))
