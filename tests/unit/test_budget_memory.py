"""What is kept of a thread: little, bounded, and nothing that holds on to its runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.scripted import agent, ask, scripted
from benchmarks.soak import idle_thread_kb, soak, wait_for_rest
from langgraph_shadow import Branch, Shadow
from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.guard import guard as guard_module
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.trunk.model import Trunk, TrunkKey
from tests.faults.server import INSTRUCTION, MODEL, FaultServer

NEVER = Branch(name="never", instruction=INSTRUCTION, when=lambda batch: False)
ALWAYS = Branch(name="always", instruction=INSTRUCTION)
THREADS = 4


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


async def converse(server: FaultServer, shadow: Shadow, graph: Any, threads: int = THREADS) -> None:
    for number in range(threads):
        await ask(graph, f"thread {number}", "How fast does ice retreat?")
    assert await shadow.drain(timeout=30)
    await shadow.aclose()
    wait_for_rest()


async def result(_: str) -> str:
    return "glaciers shrink."


def of_type(kind: type) -> list[Any]:
    gc.collect()
    return [o for o in gc.get_objects() if type(o) is kind]


def test_an_idle_thread_costs_at_most_fifty_kilobytes(server: FaultServer) -> None:
    assert asyncio.run(idle_thread_kb(server.base_url, MODEL, threads=6)) < 50


@pytest.mark.parametrize("door", ["attach", "watch"])
def test_nothing_holds_on_to_a_run_that_is_over(server: FaultServer, door: str) -> None:
    async def main() -> None:
        llm = scripted(server.base_url, MODEL, batches=2)
        shadow = Shadow(llm, branches=[ALWAYS])
        if door == "attach":
            graph = agent(llm, result, shadow)
        else:
            graph = agent(shadow.watch(llm), result, None)
        before = of_type(StreamTarget), of_type(Batch)
        await converse(server, shadow, graph)
        assert shadow.ledger.totals.fired == 2 * THREADS
        after = of_type(StreamTarget), of_type(Batch)
        assert [len(kind) for kind in after] == [len(kind) for kind in before]
        assert not shadow._runner._intake._calls
        assert not shadow._sight._seen
        if door == "attach":
            assert not shadow._runs._runs

    asyncio.run(main())


def test_at_rest_only_fingerprints_and_a_fold_are_kept(server: FaultServer) -> None:
    async def main() -> None:
        llm = scripted(server.base_url, MODEL, batches=3)
        shadow = Shadow(llm, branches=[NEVER])
        before = len(of_type(Trunk))
        await converse(server, shadow, agent(llm, result, shadow))
        assert len(of_type(Trunk)) == before
        assert len(shadow._guard._threads) == THREADS

    asyncio.run(main())


def test_finished_threads_fall_out(server: FaultServer) -> None:
    async def main() -> None:
        llm = scripted(server.base_url, MODEL, batches=1)
        shadow = Shadow(llm, branches=[NEVER], max_threads=3)
        await converse(server, shadow, agent(llm, result, shadow), threads=9)
        kept = [f"thread {number}" for number in (6, 7, 8)]
        assert list(shadow._guard._threads) == kept
        assert [thread for thread, _ in shadow._runner._intake._lines] == kept

    asyncio.run(main())


def test_a_short_soak_is_exact_and_leaves_nothing(server: FaultServer) -> None:
    found = asyncio.run(soak(server.base_url, MODEL, batches=60, threads=4))
    assert found.fired == 60
    assert found.exact
    assert found.clean


class TestAtRest:
    """The guard's memory of a thread while nothing runs there."""

    KEY = TrunkKey("t", node="agent")

    def history(self, length: int, text: str = "glaciers ") -> Trunk:
        messages = [{"role": "system", "content": "Be careful."}]
        for number in range(length):
            messages.append({"role": "user", "content": f"{number} {text * 5}"})
            messages.append({"role": "assistant", "content": f"{number} is shrinking"})
        return Trunk.build(key=self.KEY, model="m", messages=messages)

    def changed(self, trunk: Trunk, at: int) -> Trunk:
        messages = list(trunk.messages)
        messages[at] = {**messages[at], "content": "Be careful. It is 12:30."}
        return Trunk.build(key=self.KEY, model="m", messages=messages)

    def test_a_break_after_it_is_told_as_before(self) -> None:
        awake, rested = Guard(), Guard()
        trunk = self.history(3)
        for guard in (awake, rested):
            guard.check(trunk)
        rested.rest("t")
        assert rested._threads["t"].lines == {}
        broken = self.changed(trunk, 0)
        report = rested.check(broken)
        assert report is not None
        assert report == awake.check(broken)

    def test_going_on_is_no_break(self) -> None:
        guard = Guard(mode="reject")
        trunk = self.history(3)
        for length in (3, 4, 6):
            assert guard.check(self.history(length)) is None
            guard.rest("t")
            guard.rest("t")
        assert guard.newest(self.KEY) == self.history(6)
        assert guard.check(trunk) is None, "time travel"

    @pytest.mark.parametrize("at", [0, 3])
    def test_of_a_very_long_history_fingerprints_are_left(
        self, monkeypatch: pytest.MonkeyPatch, at: int
    ) -> None:
        monkeypatch.setattr(guard_module, "_MAX_FOLDED", 100)
        guard = Guard()
        trunk = self.history(5)
        guard.check(trunk)
        guard.rest("t")
        newest = guard.newest(self.KEY)
        assert newest is not None
        assert (newest.messages, newest.digests) == ((), trunk.digests)
        assert guard.check(self.history(6)) is None
        guard.rest("t")
        report = guard.check(self.changed(self.history(6), at))
        assert report is not None
        assert (report.kind, report.path) == ("unknown", f"messages[{at}]")
        assert report.lost_share == pytest.approx(1 - at / 13)

    def test_what_cannot_be_folded_stays_as_it_is(self) -> None:
        guard = Guard()
        odd = {"role": "user", "content": (lambda: None)}
        guard.check(Trunk.build(key=self.KEY, model="m", messages=[odd]))
        guard.rest("t")
        assert guard.newest(self.KEY) is not None
