"""What the server was sent, and what a next prompt can find of it."""

from __future__ import annotations

import pytest

from langgraph_shadow.specialists import memory
from langgraph_shadow.specialists.memory import SentPrompts


def test_nothing_is_known_of_a_new_thread() -> None:
    sent = SentPrompts()
    sent.add("", "a", (1, 2, 3))
    assert sent.shared("", "b", (1, 2, 3)) is None
    assert sent.shared("salt", "a", (1, 2, 3)) is None


def test_the_longest_prefix_counts_and_other_threads_do_too() -> None:
    sent = SentPrompts()
    sent.add("", "a", (1, 2, 3, 4))
    sent.add("", "b", (1, 9))
    sent.add("", "b", (1, 2, 9))
    assert sent.shared("", "b", (1, 2, 3, 4, 5)) == 4
    assert sent.shared("", "a", (7,)) == 0


def test_old_threads_fall_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAX_TOKENS", 10)
    sent = SentPrompts()
    for thread in "abc":
        sent.add("", thread, tuple(range(5)))
    assert sent.shared("", "a", (0,)) is None
    assert sent.shared("", "c", (0,)) == 1
