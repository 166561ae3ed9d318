"""Repair: what was sent is sent again in the same bytes, and nothing is guessed."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.repair import Stabiliser
from langgraph_shadow.trunk.model import TrunkKey, canonical
from tests.unit.guard_histories import (
    TOOLS,
    answer,
    calls,
    histories,
    loop,
    model_calls,
    result,
    system,
    trunk,
    user,
)

if TYPE_CHECKING:
    from langgraph_shadow.trunk.model import Trunk


def text(sent: Trunk, at: int) -> str:
    return str(sent.messages[at]["content"])


def clocked(minute: int, steps: int) -> list[dict[str, Any]]:
    return loop(steps, head=f"Be kind. It is 12:{minute:02d} now.")


@settings(deadline=None)
@given(
    history=histories(),
    ticks=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    again=st.booleans(),
)
def test_with_a_ticking_clock_each_trunk_extends_the_one_before(
    history: list[dict[str, Any]], ticks: list[int], *, again: bool
) -> None:
    if history[0]["role"] != "system":
        history = [system(), *history]
    stabiliser, guard = Stabiliser(), Guard(mode="reject")
    seconds, before = 0, None
    for tick, messages in zip(ticks, model_calls(history), strict=False):
        seconds += tick
        clock = f" It is 2026-07-21 12:{seconds // 60:02d}:{seconds % 60:02d}, req_{seconds}a8f3kd."
        messages = [{**messages[0], "content": messages[0]["content"] + clock}, *messages[1:]]
        given_in = trunk(messages)
        untouched = copy.deepcopy(given_in.messages)

        sent, _ = stabiliser.repair(given_in)
        if again:
            assert stabiliser.repair(given_in)[0] == sent
            assert stabiliser.repair(sent)[0].messages == sent.messages

        assert given_in.messages == untouched
        assert guard.check(sent) is None
        assert before is None or sent.extends(before)
        assert sent.fingerprint == trunk(list(sent.messages)).fingerprint
        before = sent


def test_the_fresh_clock_stands_once_at_the_end_and_stays_there() -> None:
    stabiliser = Stabiliser()
    first, none = stabiliser.repair(trunk(clocked(0, 1)))
    second, made = stabiliser.repair(trunk(clocked(1, 2)))
    third, _ = stabiliser.repair(trunk(clocked(1, 3)))

    assert none == ()
    assert first == trunk(clocked(0, 1))
    assert text(second, 0) == text(third, 0) == "Be kind. It is 12:00 now."
    assert text(second, 5) == text(third, 5) == "what call_1 found\n\n[now: 12:01]"
    # The clock stood still since, so there is nothing new to say.
    assert text(third, 7) == "what call_2 found"
    assert [(r.kind, r.path) for r in made] == [("clock", "messages[0].content")]
    assert "'12:01'" in made[0].detail


def test_an_identifier_is_frozen_and_its_new_value_named() -> None:
    stabiliser = Stabiliser()
    heads = ("request req_8f3kd02ma1", "request req_1b9xk77qz4")
    stabiliser.repair(trunk(loop(1, head=heads[0])))

    sent, made = stabiliser.repair(trunk(loop(2, head=heads[1])))

    assert text(sent, 0) == heads[0]
    assert text(sent, 5).endswith("\n\n[req_8f3kd02ma1 is now req_1b9xk77qz4]")
    assert [r.kind for r in made] == ["identifier"]


def test_a_retry_with_a_later_clock_sends_the_same_again() -> None:
    stabiliser = Stabiliser()
    stabiliser.repair(trunk(clocked(0, 1)))
    sent, _ = stabiliser.repair(trunk(clocked(1, 2)))

    retried, made = stabiliser.repair(trunk(clocked(2, 2)))

    assert retried.messages == sent.messages
    assert [r.kind for r in made] == ["clock"]


def test_content_in_parts_gets_the_clock_as_a_part() -> None:
    stabiliser = Stabiliser()
    stabiliser.repair(trunk(clocked(0, 1)))
    parts = [*clocked(1, 1), calls("x"), result("x")]
    parts[-1]["content"] = [{"type": "text", "text": "ice"}]

    sent, _ = stabiliser.repair(trunk(parts))

    assert sent.messages[-1]["content"] == [
        {"type": "text", "text": "ice"},
        {"type": "text", "text": "\n\n[now: 12:01]"},
    ]


def test_tools_come_back_in_their_first_order_and_bytes() -> None:
    stabiliser = Stabiliser()
    first, _ = stabiliser.repair(trunk(loop(1)))
    other = [dict(reversed(t.items())) for t in reversed(copy.deepcopy(TOOLS))]

    sent, made = stabiliser.repair(trunk(loop(2), tools=other))

    assert canonical(sent.tools) == canonical(first.tools)
    assert sent.extends(first)
    assert [(r.kind, r.path) for r in made] == [("tools", "tools")]


def test_another_set_of_tools_is_not_guessed() -> None:
    stabiliser, guard = Stabiliser(), Guard(mode="observe")
    guard.check(stabiliser.repair(trunk(loop(1)))[0])

    sent, made = stabiliser.repair(trunk(loop(2), tools=TOOLS[:2]))
    report = guard.check(sent)

    assert list(sent.tools) == TOOLS[:2]
    assert made == ()
    assert report is not None
    assert report.kind == "tools"


def test_parallel_results_come_back_in_call_order() -> None:
    head = [system(), user("Both?"), calls("a", "b", "c")]
    stabiliser = Stabiliser()

    sent, made = stabiliser.repair(trunk([*head, result("c"), result("a"), result("b")]))
    again, none = stabiliser.repair(
        trunk([*head, result("b"), result("a"), result("c"), answer("41 m"), user("Why?")])
    )

    assert [m["tool_call_id"] for m in sent.messages[3:]] == ["a", "b", "c"]
    assert [(r.kind, r.path) for r in made] == [("reordered", "messages[3]")]
    assert again.extends(sent)
    assert none == ()


def test_results_that_no_call_explains_stay_where_they_are() -> None:
    messages = [system(), user("Both?"), calls("a", "b"), result("b"), result("x"), result("a")]
    twice = [system(), user("Both?"), calls("a", "b"), result("b"), result("b"), result("a")]

    for given_in in (messages, twice):
        sent, made = Stabiliser().repair(trunk(given_in))

        assert list(sent.messages) == given_in
        assert made == ()


def test_arguments_are_replayed_in_the_models_own_text() -> None:
    own = '{"limit":5,  "query":"call_0"}'
    stabiliser = Stabiliser()
    stabiliser.remember_arguments("t", {"call_0": own, "call_1": "not the same"})

    sent, made = stabiliser.repair(trunk(loop(2)))

    function = sent.messages[2]["tool_calls"][0]["function"]
    assert function == {"name": "search", "arguments": own}
    assert sent.messages[4] == loop(2)[4]
    assert [(r.kind, r.path) for r in made] == [
        ("serialisation", "messages[2].tool_calls[0].function.arguments")
    ]
    assert Stabiliser().repair(trunk(loop(2)))[1] == ()


def test_arguments_serialised_anew_go_back_to_the_first_text() -> None:
    stabiliser = Stabiliser()
    first, _ = stabiliser.repair(trunk(loop(2)))
    other = loop(3)
    function = other[2]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))

    sent, made = stabiliser.repair(trunk(other))

    assert sent.extends(first)
    assert [r.kind for r in made] == ["serialisation"]


def test_an_edit_is_left_to_the_guard() -> None:
    stabiliser, guard = Stabiliser(), Guard(mode="observe")
    guard.check(stabiliser.repair(trunk(clocked(0, 2)))[0])
    edited = clocked(1, 3)
    edited[3]["content"] = "[cleared]"

    sent, _ = stabiliser.repair(trunk(edited))
    report = guard.check(sent)

    assert text(sent, 0) == "Be kind. It is 12:00 now."
    assert text(sent, 3) == "[cleared]"
    assert report is not None
    assert (report.kind, report.path) == ("edited", "messages[3].content")


def test_a_changed_request_field_is_left_to_the_guard() -> None:
    stabiliser, guard = Stabiliser(), Guard(mode="observe")
    guard.check(stabiliser.repair(trunk(clocked(0, 1)))[0])

    sent, _ = stabiliser.repair(trunk(clocked(1, 2), reasoning_effort="low"))
    report = guard.check(sent)

    assert sent.fields == {"reasoning_effort": "low"}
    assert text(sent, 0) == "Be kind. It is 12:00 now."
    assert report is not None
    assert report.kind == "request_field"


def test_time_travel_and_forks_keep_what_was_sent() -> None:
    stabiliser, guard = Stabiliser(), Guard(mode="reject")
    sent = []
    for n in range(5):
        mended, _ = stabiliser.repair(trunk(clocked(n, n)))
        guard.check(mended)
        sent.append(mended)

    back, _ = stabiliser.repair(trunk(clocked(9, 2)))
    fork, _ = stabiliser.repair(trunk([*clocked(9, 2), calls("x", query="z"), result("x")]))
    onward, _ = stabiliser.repair(trunk(clocked(10, 5)))

    assert back.messages == sent[2].messages
    assert fork.extends(sent[2])
    assert onward.extends(sent[4])


def test_parallel_runs_of_one_node_do_not_disturb_each_other() -> None:
    def run(question: str, minute: int, steps: int) -> list[dict[str, Any]]:
        messages = clocked(minute, steps)
        return [messages[0], user(question), *messages[2:]]

    stabiliser = Stabiliser()
    before = {q: stabiliser.repair(trunk(run(q, i, 0)))[0] for i, q in enumerate("abc")}
    for minute in range(3, 6):
        for question in "abc":
            sent, _ = stabiliser.repair(trunk(run(question, minute, minute - 2)))

            assert sent.extends(before[question])
            before[question] = sent


def test_lines_are_separate_and_forgotten() -> None:
    stabiliser = Stabiliser(max_lines=2)
    keys = [TrunkKey("a"), TrunkKey("b"), TrunkKey("c")]
    for i, key in enumerate(keys):
        sent, made = stabiliser.repair(trunk(clocked(i, 1), key=key))
        assert (text(sent, 0), made) == (f"Be kind. It is 12:0{i} now.", ())

    assert text(stabiliser.repair(trunk(clocked(9, 1), key=keys[2]))[0], 0).endswith("12:02 now.")
    assert text(stabiliser.repair(trunk(clocked(9, 1), key=keys[0]))[0], 0).endswith("12:09 now.")
    stabiliser.forget("c")
    assert text(stabiliser.repair(trunk(clocked(9, 1), key=keys[2]))[0], 0).endswith("12:09 now.")


def test_many_threads_at_once() -> None:
    stabiliser, guard = Stabiliser(), Guard(mode="reject")

    def run(worker: int) -> None:
        key = TrunkKey(f"thread-{worker}")
        for n in range(30):
            guard.check(stabiliser.repair(trunk(clocked(n, n), key=key))[0])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))


def test_a_trunk_that_cannot_be_read_passes_as_it_is() -> None:
    stabiliser = Stabiliser()
    odd = trunk([system(), "no message"])  # type: ignore[list-item]

    for _ in range(2):
        assert stabiliser.repair(odd) == (odd, ())
