"""The timeline: one picture per thread, in proportion, escaped and without scripts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from langgraph_shadow.delivery.calls import CallRow
from langgraph_shadow.delivery.ledger import Ledger, LedgerRow
from langgraph_shadow.delivery.timeline import THREADS, _Scale, timeline
from langgraph_shadow.trunk.model import TrunkKey

SVG = "{http://www.w3.org/2000/svg}"


def call(start: float, end: float, **changes: Any) -> CallRow:
    values: dict[str, Any] = {
        "thread": "t",
        "namespace": "",
        "node": "agent",
        "started": start,
        "first_token": None,
        "ended": end,
    }
    return CallRow(**(values | changes))


def branch(at: float, *, took: float = 1.0, lag: float = 2.0, **changes: Any) -> LedgerRow:
    values: dict[str, Any] = {
        "branch": "user_update",
        "mode": "shared",
        "thread": "t",
        "namespace": "",
        "tool_call_ids": ("c1",),
        "launch": "follow",
        "exact": True,
        "verdict": "update",
        "text": "News.",
        "total_ms": took * 1e3,
        "lag_ms": lag * 1e3,
        "at": at,
    }
    return LedgerRow(**(values | changes))


def drawings(html: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def bars(picture: ET.Element) -> dict[str, tuple[float, float, float]]:
    """First line of each bar's title: its left and right end, and its height."""
    found = {}
    for group in picture.iter("g"):
        rects = list(group.iter("rect"))
        if rects:
            left = float(rects[0].attrib["x"])
            right = float(rects[-1].attrib["x"]) + float(rects[-1].attrib["width"])
            title = str(group.findtext("title")).splitlines()[0]
            found[title] = (left, right, float(rects[0].attrib["y"]))
    return found


def test_calls_lie_above_branches_and_lengths_are_in_proportion() -> None:
    calls = [call(0, 2, called=("search",)), call(3, 4)]
    [picture] = drawings(timeline(calls, [branch(4, took=0.5)]))
    found = bars(picture)
    first, second = found["agent: search"], found["agent: answer"]
    shadow = found["user_update: update"]
    assert first[2] == second[2] < shadow[2]
    assert first[1] - first[0] == pytest.approx(2 * (second[1] - second[0]), abs=1)
    assert shadow[1] == pytest.approx(second[1], abs=1)
    assert shadow[1] - shadow[0] == pytest.approx((second[1] - second[0]) / 2, abs=1)


def test_bars_that_overlap_get_rows_of_their_own() -> None:
    rows = [branch(3, branch="a"), branch(3.5, branch="b"), branch(3.5, branch="a", verdict="skip")]
    [picture] = drawings(timeline([], rows))
    assert len({height for _, _, height in bars(picture).values()}) == 3


def test_a_wait_for_the_person_is_cut_out_but_a_slow_tool_is_not() -> None:
    waited = [call(0, 1), call(600, 601)]
    [picture] = drawings(timeline(waited, []))
    assert "⋯" in "".join(picture.itertext())
    assert "599 s in which nothing ran" in "".join(picture.itertext())
    worked = [call(0, 1, called=("slow",)), call(600, 601)]
    [picture] = drawings(timeline(worked, []))
    assert "⋯" not in "".join(picture.itertext())


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 100)), min_size=1, max_size=30),
    st.lists(st.floats(-10, 2e5), min_size=2, max_size=30),
)
def test_time_only_runs_to_the_right(spans: list[Any], moments: list[float]) -> None:
    scale = _Scale.of((start, start + length) for start, length in spans)
    drawn = [scale.x(moment) for moment in sorted(moments)]
    assert drawn == sorted(drawn)
    assert all(0 <= x <= 960 for x in drawn)


def test_what_models_and_users_say_is_escaped() -> None:
    evil = "</title><script>alert(1)</script>\"'&"
    calls = [call(0, 1, node=evil, thread=evil, called=(evil,), namespace=f"{evil}:1")]
    rows = [branch(1, thread=evil, branch=evil, text=evil)]
    ledger = Ledger()
    ledger.add_call(calls[0])
    ledger.add(rows[0])
    html = ledger._repr_html_()
    assert "<script" not in html
    [picture] = drawings(html)
    assert any(evil in str(title.text) for title in picture.iter("title"))


def test_nothing_is_fetched_and_nothing_runs() -> None:
    html = timeline([call(0, 1)], [branch(1)])
    assert not re.search(r"<script|href=|url\(|\son\w+=|https?://", html)


def test_each_thread_has_a_picture_and_old_ones_are_left_out() -> None:
    calls = [call(i, i + 1, thread=f"t{i}") for i in range(THREADS + 2)]
    html = timeline(calls, [])
    assert len(drawings(html)) == THREADS
    assert "2 earlier threads are not drawn" in html
    assert "thread t0" not in html
    assert "thread t5" in html


def test_an_empty_ledger_draws_nothing() -> None:
    assert timeline([], []) == ""
    assert "<table>" in Ledger()._repr_html_()


def test_a_branch_that_was_never_sent_is_drawn_all_the_same() -> None:
    row = branch(1, verdict="shed", total_ms=None, lag_ms=None, text="", reason="newer")
    [picture] = drawings(timeline([], [row]))
    assert list(bars(picture)) == ["user_update: shed"]
    assert "newer" in "".join(picture.itertext())


def test_a_call_says_what_it_asked_for_and_what_was_cached() -> None:
    message = AIMessage(
        "",
        tool_calls=[{"name": "search", "args": {}, "id": "c1"}],
        usage_metadata={
            "input_tokens": 100,
            "output_tokens": 5,
            "total_tokens": 105,
            "input_token_details": {"cache_read": 96},
        },
    )
    key = TrunkKey(thread="t", namespace="", node="agent")
    row = CallRow.of(key, message, started=1.0, first_token=1.5, ended=3.0)
    assert (row.called, row.failed, row.prompt_tokens, row.cached) == (("search",), False, 100, 96)
    [picture] = drawings(timeline([row], []))
    title = str(next(g for g in picture.iter("g")).findtext("title"))
    assert title.splitlines() == [
        "agent: search",
        "2.00 s, first token after 0.50 s",
        "96 of 100 prompt tokens cached",
    ]


def test_a_failed_call_is_told_from_an_answer() -> None:
    row = CallRow.of(TrunkKey(thread="t"), None, started=0, first_token=None, ended=1)
    [picture] = drawings(timeline([row], []))
    assert list(bars(picture)) == ["model: failed"]
