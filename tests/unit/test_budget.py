"""The limits on their own, against a clock that the test moves."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from langgraph_shadow.runner import slowdown
from langgraph_shadow.runner.breaker import LONGEST_COOL_DOWN, Breaker
from langgraph_shadow.runner.budget import Budget, Refusal
from langgraph_shadow.runner.load import Load
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Options
from langgraph_shadow.runner.slowdown import Slowdown
from langgraph_shadow.server.metrics import ServerMetrics


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Answers `metrics()` and counts how often it was asked."""

    def __init__(self, answer: ServerMetrics | Exception) -> None:
        self.answer = answer
        self.asked = 0

    async def metrics(self) -> ServerMetrics:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def budget(clock: Clock | None = None, **limits: Any) -> Budget:
    return Budget(Options(**limits), once=Once(), clock=clock or Clock())


CALM = Server(ServerMetrics())


class TestTokens:
    async def test_the_minute_slides(self) -> None:
        clock = Clock()
        spent = budget(clock, max_tokens_per_minute=100)
        spent.spend(60)
        clock.now += 30
        assert await spent.pressure(CALM.metrics) is None
        spent.spend(40)
        refusal = await spent.pressure(CALM.metrics)
        assert refusal == Refusal(
            "max_tokens_per_minute",
            "branches computed 100 tokens in the last minute; the limit is 100",
        )
        clock.now += 30
        assert await spent.pressure(CALM.metrics) is None

    async def test_without_a_limit_nothing_is_kept(self) -> None:
        free = budget()
        free.spend(10**9)
        assert await free.pressure(CALM.metrics) is None
        assert not free._spent

    @given(
        limit=st.integers(1, 50),
        events=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=20),
    )
    def test_it_refuses_exactly_when_the_last_minute_is_full(
        self, limit: int, events: list[tuple[int, int]]
    ) -> None:
        clock = Clock()
        spent = budget(clock, max_tokens_per_minute=limit)
        done: list[tuple[float, int]] = []
        for pause, tokens in events:
            clock.now += pause
            spent.spend(tokens)
            done.append((clock.now, tokens))
            last = sum(n for at, n in done if at > clock.now - 60)
            assert (spent._tokens() is not None) == (last >= limit)


class TestLoad:
    @pytest.mark.parametrize(
        ("load", "kind", "words"),
        [
            (ServerMetrics(num_requests_waiting=3), "max_queue", "3 requests were waiting"),
            (ServerMetrics(kv_cache_usage=0.96), "max_kv_usage", "96% of the server's KV cache"),
            (ServerMetrics(num_requests_waiting=2, kv_cache_usage=0.9), None, ""),
        ],
    )
    async def test_the_server_is_over_a_line(
        self, load: ServerMetrics, kind: str | None, words: str
    ) -> None:
        refusal = await budget(max_queue=2, max_kv_usage=0.9).pressure(Server(load).metrics)
        assert (refusal.kind if refusal else None) == kind
        assert words in (refusal.reason if refusal else "")

    async def test_without_lines_it_is_not_even_read(self) -> None:
        server = Server(ServerMetrics(num_requests_waiting=99))
        assert await budget(max_queue=None, max_kv_usage=None).pressure(server.metrics) is None
        assert server.asked == 0

    async def test_it_is_read_once_a_second(self) -> None:
        clock = Clock()
        load, server = Load(clock=clock), Server(ServerMetrics(num_requests_waiting=1))
        for _ in range(5):
            clock.now += 0.1
            assert await load.read(server.metrics) == server.answer
        assert server.asked == 1
        clock.now += 1
        await load.read(server.metrics)
        assert server.asked == 2

    async def test_a_server_that_does_not_say_is_no_reason_to_shed(self) -> None:
        server = Server(ConnectionError("refused"))
        assert await budget(max_queue=0).pressure(server.metrics) is None
        assert server.asked == 1

    async def test_an_old_reading_does_not_outlive_a_failed_one(self) -> None:
        clock = Clock()
        load, server = Load(clock=clock), Server(ServerMetrics(num_requests_waiting=1))
        await load.read(server.metrics)
        server.answer, clock.now = TimeoutError(), clock.now + 2
        assert await load.read(server.metrics) is None


class TestSlowdown:
    def fill(self, compared: Slowdown, alone: float, beside: float, times: int) -> None:
        for _ in range(times):
            compared.add(alone, beside=False)
            compared.add(beside, beside=True)

    def test_medians_are_compared_and_outliers_do_not_matter(self) -> None:
        compared = Slowdown()
        self.fill(compared, 0.2, 0.25, slowdown.NEEDED)
        compared.add(90.0, beside=True)
        assert compared.share() == pytest.approx(0.25)

    def test_a_few_calls_say_nothing(self) -> None:
        compared = Slowdown()
        self.fill(compared, 0.2, 9.0, slowdown.NEEDED - 1)
        assert compared.share() is None

    def test_it_forgets_so_that_branches_come_back(self) -> None:
        clock = Clock()
        compared = Slowdown(clock=clock)
        self.fill(compared, 0.2, 9.0, slowdown.NEEDED)
        assert compared.share() is not None
        clock.now += slowdown.WINDOW_S + 1
        assert compared.share() is None

    async def test_the_budget_knows_which_calls_were_beside_branches(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ticks = Clock()
        monkeypatch.setattr("langgraph_shadow.runner.budget.time.perf_counter", ticks)
        felt = budget(max_slowdown=0.1)

        def call(seconds: float) -> None:
            started = ticks.now
            ticks.now += seconds
            felt.first_token(started)
            ticks.now += 1

        for _ in range(slowdown.NEEDED):
            call(1.0)
            with felt.running():
                call(1.5)
        refusal = await felt.pressure(CALM.metrics)
        assert refusal is not None
        assert refusal.reason == (
            "the agent's first token took 50% longer beside branches; the limit is 10%"
        )

    async def test_a_branch_that_ended_during_the_call_was_beside_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ticks = Clock()
        monkeypatch.setattr("langgraph_shadow.runner.budget.time.perf_counter", ticks)
        felt = budget(max_slowdown=0.1)
        started = ticks.now
        with felt.running():
            ticks.now += 1
        ticks.now += 1
        felt.first_token(started)
        assert [len(felt._slowdown._beside), len(felt._slowdown._alone)] == [1, 0]


class TestBreaker:
    def broken(self, clock: Clock, failures: int = 3) -> Breaker:
        breaker = Breaker(max_failures=failures, cool_down=5, clock=clock)
        for _ in range(failures):
            breaker.record(probe=breaker.enter(), healthy=False)
        return breaker

    def test_failures_in_a_row_open_it(self) -> None:
        breaker = self.broken(Clock())
        assert breaker.reason == (
            "the server failed 3 times in a row; no branch is sent for 5 s more"
        )

    def test_a_success_between_them_does_not_let_them_add_up(self) -> None:
        breaker = Breaker(max_failures=2, cool_down=5)
        for healthy in (False, True, False, None, True, False):
            breaker.record(probe=breaker.enter(), healthy=healthy)
        assert breaker.reason is None

    def test_one_probe_decides(self) -> None:
        clock = Clock()
        breaker = self.broken(clock)
        clock.now += 5
        assert breaker.reason is None
        probe = breaker.enter()
        assert probe
        assert "one branch is trying it now" in str(breaker.reason)
        breaker.record(probe=probe, healthy=True)
        assert breaker.reason is None
        breaker.record(probe=breaker.enter(), healthy=False)
        assert breaker.reason is None, "it starts to count anew"

    def test_the_cool_down_grows_to_an_end(self) -> None:
        clock = Clock()
        breaker = self.broken(clock)
        waits = []
        for _ in range(9):
            before = clock.now
            while breaker.reason is not None:
                clock.now += 5
            waits.append(clock.now - before)
            breaker.record(probe=breaker.enter(), healthy=False)
        assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
        assert waits[-1] == LONGEST_COOL_DOWN

    def test_a_probe_that_learned_nothing_leaves_its_place(self) -> None:
        clock = Clock()
        breaker = self.broken(clock)
        clock.now += 5
        breaker.record(probe=breaker.enter(), healthy=None)
        assert breaker.reason is None

    def test_stragglers_do_not_prolong_it(self) -> None:
        clock = Clock()
        breaker = Breaker(max_failures=1, cool_down=5, clock=clock)
        early = [breaker.enter(), breaker.enter()]
        breaker.record(probe=early[0], healthy=False)
        clock.now += 4
        breaker.record(probe=early[1], healthy=False)
        clock.now += 1
        assert breaker.reason is None


def test_each_kind_of_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    spent = budget()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            spent.say(Refusal("max_queue", f"{number} requests were waiting"))
            spent.say(Refusal("max_failures", "the server failed"))
    assert [r.getMessage() for r in caplog.records] == [
        "branches are shed (max_queue): 0 requests were waiting; the ledger counts them",
        "branches are shed (max_failures): the server failed; the ledger counts them",
    ]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens_per_minute": 0},
        {"max_queue": -1},
        {"max_kv_usage": 1.1},
        {"max_slowdown": -0.1},
        {"max_failures": 0},
        {"cool_down": 0},
        {"late": "never"},
        {"priority": "high"},
    ],
)
def test_a_limit_out_of_range_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(limits))):
        Options(**limits)
