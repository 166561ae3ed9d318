"""Keys can be moved to any position, and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.spans import Rope, Span, difference
from tests.unit.correction.conftest import words

POSITION = st.integers(0, 5_000)
ROPE = Rope(1.0 / (10_000 ** (torch.arange(0, 16, 2) / 16)))


def keys(seed: int) -> torch.Tensor:
    return torch.randn(2, 4, 2, 16, generator=torch.Generator().manual_seed(seed))


@given(POSITION, POSITION, st.integers(0, 99))
def test_two_rotations_are_one(first: int, second: int, seed: int) -> None:
    once = ROPE.rotate(keys(seed), first + second)
    twice = ROPE.rotate(ROPE.rotate(keys(seed), first), second)
    assert torch.allclose(once, twice, atol=1e-4)


@given(POSITION, POSITION, st.integers(0, 99))
def test_moving_there_and_back_changes_nothing(start: int, target: int, seed: int) -> None:
    span = Span(keys(seed), keys(seed + 1), start)
    back = span.moved(target, ROPE).moved(start, ROPE)
    assert torch.allclose(back.keys, span.keys, atol=1e-4)
    assert torch.equal(back.values, span.values)
    assert back.start == start


@given(POSITION, POSITION, POSITION, st.integers(0, 99))
def test_scores_depend_on_distance_alone(query: int, key: int, shift: int, seed: int) -> None:
    one, other = keys(seed), keys(seed + 1)
    near = (ROPE.rotate(one, query) * ROPE.rotate(other, key)).sum(-1)
    far = (ROPE.rotate(one, query + shift) * ROPE.rotate(other, key + shift)).sum(-1)
    assert torch.allclose(near, far, atol=1e-3)


def test_rotation_is_the_models_own(model: LabModel) -> None:
    """The first layer's keys know nothing of the role: moved, they are those of a prefill there."""
    tokens = words(12)
    here, there = (model.prefill(tokens, model.prefill(words(n, seed=n))) for n in (3, 40))
    assert torch.allclose(here.moved(40, model.rope).keys[0], there.keys[0], atol=1e-5)
    assert not torch.allclose(here.lying_at(40).keys[0], there.keys[0], atol=1e-2)


def test_parts_and_wholes() -> None:
    span = Span(keys(0), keys(1), 7)
    again = span.part(0, 1).then(span.part(1, 4))
    assert torch.equal(again.keys, span.keys)
    assert again.start == 7
    assert span.part(1, 4).start == 8
    assert len(span) == 4


def test_the_difference_has_no_frame() -> None:
    span = Span(keys(0), keys(1), 7)
    deltas = difference(span.moved(90, ROPE), span, ROPE)
    assert all(delta.abs().max() < 1e-5 for delta in deltas)


@pytest.mark.parametrize("added", [0.0, 1.0])
def test_a_correction_is_added_in_place(added: float) -> None:
    span = Span(keys(0), keys(1))
    rows = torch.full((2, 4, 32), added)
    assert torch.equal(span.plus(rows, rows).keys, span.keys + added)
