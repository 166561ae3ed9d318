"""What the guard does about breaks: modes, announcements, the session tree, threads."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from blockbuster import blockbuster_ctx

from langgraph_shadow.errors import PrefixMutationError
from langgraph_shadow.guard.fields import FieldRules
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.repair import Stabiliser
from langgraph_shadow.trunk.model import TrunkKey
from tests.unit.guard_histories import answer, calls, loop, result, system, trunk, user

if TYPE_CHECKING:
    from langgraph_shadow.guard.report import Report


def clocked(minute: int, steps: int) -> list[dict[str, object]]:
    return loop(steps, head=f"Be kind. It is 12:{minute:02d}.")


def test_off_compares_nothing() -> None:
    guard = Guard(mode="off", on_report=pytest.fail)

    assert guard.check(trunk(clocked(1, 1))) is None
    assert guard.check(trunk(clocked(2, 2))) is None


def test_observe_reports_and_does_not_log(caplog: pytest.LogCaptureFixture) -> None:
    reports: list[Report] = []
    guard = Guard(mode="observe", on_report=reports.append)

    found = [guard.check(trunk(clocked(n, n))) for n in range(3)]

    assert found[0] is None
    assert [r.kind for r in reports] == ["clock", "clock"]
    assert found[1:] == reports
    assert caplog.records == []


@pytest.mark.parametrize("mode", ["warn", "repair"])
def test_warn_logs_once_per_kind_and_thread(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(mode=mode)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "langgraph_shadow.guard"):
        for n in range(4):
            guard.check(trunk(clocked(n, n)))
        guard.check(trunk(loop(2)))
        for n in range(2):
            guard.check(trunk(clocked(n, n), key=TrunkKey("other")))

    kinds = [m.split("before it: ")[1].split()[0] for m in caplog.messages]
    assert kinds == ["clock", "edited", "clock"]
    assert "messages[0].content, character" in caplog.messages[0]
    assert "12:00" in caplog.messages[0]
    assert "\n" not in caplog.text.strip().splitlines()[0]


def test_reject_raises_and_keeps_the_old_trunk_as_the_base() -> None:
    guard = Guard(mode="reject")
    guard.check(trunk(loop(1)))

    with pytest.raises(PrefixMutationError) as raised:
        guard.check(trunk(clocked(1, 2)))

    assert raised.value.report.path == "messages[0].content"
    assert guard.check(trunk(loop(2))) is None


def test_an_announced_break_is_recorded_once_and_let_pass() -> None:
    reports: list[Report] = []
    guard = Guard(mode="reject", on_report=reports.append)
    guard.check(trunk(loop(3)))
    guard.expect_break("t", "compaction")
    summary = [system(), user("Summary of it all: ice melts."), *loop(3)[-2:]]

    found = guard.check(trunk(summary))

    assert found is not None
    assert (found.kind, found.expected) == ("summarised", "compaction")
    assert reports == [found]
    assert guard.check(trunk([*summary, answer("41 m"), user("Why?")])) is None
    with pytest.raises(PrefixMutationError):
        guard.check(trunk([system(), *loop(3)[-2:]]))


def test_an_announcement_is_for_its_thread_only() -> None:
    guard = Guard(mode="reject")
    guard.expect_break("other", "compaction")
    guard.check(trunk(clocked(1, 1)))

    with pytest.raises(PrefixMutationError):
        guard.check(trunk(clocked(2, 2)))


def test_what_on_report_raises_does_not_reach_the_graph() -> None:
    def broken(_report: Report) -> None:
        raise RuntimeError

    guard = Guard(mode="observe", on_report=broken)
    guard.check(trunk(clocked(1, 1)))

    assert guard.check(trunk(clocked(2, 2))) is not None


def test_an_unknown_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'strict'; use one of off, observe, warn, reject, repair"):
        Guard(mode="strict")  # type: ignore[arg-type]


def test_nodes_and_subagents_are_lines_of_their_own() -> None:
    guard = Guard(mode="reject")
    keys = [TrunkKey("t", "", "plan"), TrunkKey("t", "", "act"), TrunkKey("t", "sub:1", "act"),
            TrunkKey("t", "sub:2", "act"), TrunkKey("u", "", "plan")]  # fmt: skip
    for steps in range(4):
        for key in keys:
            messages = loop(steps, head=f"You are {key}.")

            assert guard.check(trunk(messages, key=key)) is None


def test_a_fork_that_goes_on_from_the_old_branch_is_no_break() -> None:
    guard = Guard(mode="reject")
    main, fork = loop(3), [*loop(1), calls("x", query="other"), result("x")]
    for messages in (*(loop(n) for n in range(4)), fork):
        guard.check(trunk(messages))

    assert guard.check(trunk([*main, calls("y"), result("y")])) is None
    assert guard.check(trunk([*fork, calls("z"), result("z")])) is None
    assert guard.check(trunk(loop(2))) is None


def test_another_question_at_the_same_place_is_a_fork() -> None:
    guard = Guard(mode="reject")
    first = [system(), user("How fast do glaciers retreat?")]
    for messages in (first, [*first, answer("41 m a year"), user("Why?")]):
        guard.check(trunk(messages))

    assert guard.check(trunk([*first, answer("41 m a year"), user("Since when?")])) is None
    assert guard.check(trunk([system(), user("What is a moraine?")])) is None


def test_a_question_whose_clock_changed_is_a_break() -> None:
    guard = Guard(mode="observe")
    guard.check(trunk([system(), user("It is 12:00. Why?")]))

    found = guard.check(trunk([system(), user("It is 12:01. Why?")]))

    assert found is not None
    assert (found.kind, found.path) == ("clock", "messages[1].content")


def test_a_fork_that_takes_old_messages_along_is_a_break() -> None:
    guard = Guard(mode="observe")
    for n in range(4):
        guard.check(trunk(loop(n)))
    kept_tail = [*loop(1), calls("x", query="other"), result("x"), *loop(3)[6:]]

    found = guard.check(trunk(kept_tail))

    assert found is not None
    assert found.path.startswith("messages[4]")


def test_whole_history_for_a_summary_is_a_break_and_not_a_fork() -> None:
    guard = Guard(mode="observe")
    for n in range(3):
        guard.check(trunk(loop(n)))

    found = guard.check(trunk([system(), user("Here is a summary of the conversation: ice.")]))

    assert found is not None
    assert found.kind == "summarised"


def test_forget_starts_anew() -> None:
    guard = Guard(mode="reject")
    guard.check(trunk(clocked(1, 1)))
    guard.forget("t")

    assert guard.check(trunk(clocked(2, 2))) is None


def test_the_least_recently_used_thread_is_forgotten() -> None:
    guard = Guard(mode="observe", max_threads=2)
    for thread in ("a", "b", "a", "c"):
        guard.check(trunk(clocked(1, 1), key=TrunkKey(thread)))

    found = {t: guard.check(trunk(clocked(2, 2), key=TrunkKey(t))) for t in ("a", "c")}

    assert all(found.values())
    assert guard.check(trunk(clocked(2, 2), key=TrunkKey("b"))) is None


def test_learnt_rules_decide() -> None:
    def renumbered() -> list[dict[str, object]]:
        head = loop(0)
        call = calls("call_9", query="call_0", limit=5)
        return [*head, call, result("call_9", "what call_0 found"), calls("b"), result("b")]

    by_rule, taught = Guard(mode="observe"), Guard(mode="observe")
    taught.learn("m", FieldRules(ids=False))
    taught.learn("another", FieldRules(ids=True))
    for guard in (by_rule, taught):
        guard.check(trunk(loop(1)))

    found = by_rule.check(trunk(renumbered()))

    assert found is not None
    assert found.kind == "identifier"
    assert taught.check(trunk(renumbered())) is None


async def test_nothing_blocks_the_event_loop() -> None:
    guard, stabiliser = Guard(mode="observe"), Stabiliser()
    with blockbuster_ctx():
        for n in range(3):
            sent, _ = stabiliser.repair(trunk(clocked(n, n)))
            guard.check(sent)
            guard.check(trunk(clocked(n, n), key=TrunkKey("unmended")))


def test_many_threads_at_once() -> None:
    reports: list[Report] = []
    guard = Guard(mode="observe", on_report=reports.append, max_threads=64)
    start = threading.Barrier(8)

    def run(worker: int) -> int:
        start.wait()
        found = 0
        for n in range(40):
            own, shared = TrunkKey(f"own-{worker}"), TrunkKey("shared", f"sub:{worker}")
            found += guard.check(trunk(clocked(0, n % 5), key=own)) is not None
            found += guard.check(trunk(clocked(n % 2, 1), key=shared)) is not None
            guard.expect_break(f"own-{worker}", "none comes")
        return found

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, range(8)))

    # Twice a line shows a prompt with a clock it has not sent before; then both are cached.
    assert found == [1] * 8
    assert len(reports) == 8
