"""How soon agents come back, and what lifetime of blocks that asks for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.delivery.calls import CallRow
from langgraph_shadow.delivery.ledger import Ledger
from langgraph_shadow.delivery.return_clock import PERSON, ReturnClock, quantile


def call(start: float, *tools: str, thread: str = "t", failed: bool = False) -> CallRow:
    """A call of one second, without a first token of its own."""
    return CallRow(
        thread=thread,
        namespace="",
        node="agent",
        started=start,
        first_token=None,
        ended=start + 1,
        called=tools,
        failed=failed,
    )


def clock(*calls: CallRow) -> ReturnClock:
    found = ReturnClock()
    for row in calls:
        found.saw(row)
    return found


def returns(gaps: Sequence[float], tool: str = "search") -> ReturnClock:
    """A clock that saw these gaps, each on a thread of its own."""
    found = ReturnClock()
    for number, seconds in enumerate(gaps):
        found.saw(call(0, tool, thread=str(number)))
        found.saw(call(1 + seconds, thread=str(number)))
    return found


def test_a_gap_belongs_to_the_tools_that_were_waited_for() -> None:
    found = clock(call(0, "search"), call(3, "read", "ask", "read"), call(9), call(100))
    assert [(g.after, g.seconds) for g in found.gaps] == [
        ("search", 2),
        ("ask + read", 5),
        (PERSON, 90),
    ]
    assert found.censored == 1


def test_threads_namespaces_and_nodes_have_clocks_of_their_own() -> None:
    other = CallRow("t", "child:1", "agent", 2, None, 3)
    assert clock(call(0, "search"), call(1, thread="u"), other).gaps == ()


def test_calls_that_overlap_are_no_return() -> None:
    assert clock(call(0, "search"), call(0.5)).gaps == ()


def test_a_failed_call_changes_nothing() -> None:
    found = clock(call(0, "search"), call(2, failed=True), call(5))
    assert [g.seconds for g in found.gaps] == [4]


def test_the_expiry_margin_counts_as_late() -> None:
    found = returns([24.9, 25.0, 31.0])
    share = found.share(30)
    assert (share.in_time, share.late, share.censored) == (1, 2, 3)
    assert share.share == pytest.approx(1 / 3)
    assert found.share(30, after="other").share is None


def test_who_never_came_back_is_censored_and_in_no_share() -> None:
    found = clock(call(0, "search"), call(2), call(0, "search", thread="u"))
    share = found.share(30, after="search")
    assert (share.in_time, share.late, share.censored) == (1, 0, 1)
    assert share.share == 1


def test_few_returns_recommend_nothing() -> None:
    assert returns([1.0] * 7).recommended_ttl() is None
    assert returns([1.0] * 7).tool_seconds() is None
    assert returns([1.0] * 8).recommended_ttl() == 7


def test_people_do_not_count_among_the_tools() -> None:
    found = ReturnClock()
    for number in range(10):
        found.saw(call(number * 100))
    assert len(found.gaps) == 9
    assert found.tool_seconds() is None


@given(st.lists(st.floats(0, 1e4), min_size=8, max_size=60), st.floats(0.05, 1))
def test_the_recommended_lifetime_is_enough_for_the_share(gaps: list[float], share: float) -> None:
    found = returns(gaps)
    ttl = found.recommended_ttl(share)
    assert ttl is not None
    reached = found.share(ttl).share
    assert reached is not None
    assert reached >= share - 1e-9


@given(st.lists(st.floats(0, 1e4), min_size=1), st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_longer_lifetime_is_never_worse(gaps: list[float], one: float, two: float) -> None:
    found = returns(gaps)
    assert found.share(min(one, two)).in_time <= found.share(max(one, two)).in_time


@given(st.lists(st.integers(), min_size=1), st.floats(0, 1))
def test_a_quantile_is_one_of_the_values(values: list[int], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values) - 1e-9


def test_the_ledger_shows_them() -> None:
    ledger = Ledger()
    assert ledger.returns.summary() == ""
    assert "Returns" not in str(ledger)
    for number in range(9):
        ledger.add_call(call(number * 10, "<search>"))
    line = (
        "returns: 8 of 8 within 30 s, 8 of 8 within 300 s, 8 of 8 within 480 s, 1 not back yet; "
        "decoder_kv_blocks_ttl 15 would do for 95 %"
    )
    assert ledger.returns.summary() == line
    assert line in " ".join(str(ledger).split())
    shown = ledger._repr_html_()
    assert line in shown
    assert "<td>&lt;search&gt;</td><td>8</td><td>9.00</td>" in shown
    assert "│ 9.00 │" in " ".join(str(ledger.returns).replace("│", " │ ").split())
