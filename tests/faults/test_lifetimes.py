"""Loops, threads and processes that end, multiply or are cut off around a shadow."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from langgraph_shadow import Shadow
from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.delivery.ledger import Ledger, LedgerRow
from tests.faults import scripts
from tests.faults.harness import (
    BATCHES,
    MODES,
    Hook,
    Mode,
    Outcome,
    accounted,
    async_agent,
    no_hook,
    run,
    shadow_on,
    sync_agent,
)
from tests.faults.server import FaultServer, serve_chat

ROOT = Path(__file__).resolve().parents[2]
MANY = 200


async def arun(
    server: FaultServer, shadow: Shadow | None, hook: Hook = no_hook, *, thread: str = "t"
) -> Outcome:
    """One run that nobody drains."""
    async with async_agent(server, shadow, hook) as agent:
        outcome: Outcome = await agent.arun(thread)
    return outcome


def test_loop_ends_with_branches_in_flight() -> None:
    """The branches are shed, and the same shadow works in the next loop."""

    def wait(call: int) -> None:
        if call == 1:
            server.arrived.wait(10)

    with FaultServer() as server:
        plain = asyncio.run(arun(server, None))
        server.branch = scripts.slow_headers
        shadow = shadow_on(server)
        assert asyncio.run(arun(server, shadow, wait)) == plain
        accounted(shadow, fired=BATCHES)
        for row in shadow.ledger:
            assert (row.verdict, "event loop ended" in row.reason) == ("shed", True)
        server.branch = serve_chat
        assert run("async", server, shadow, thread="next") == plain
        assert [row.verdict for row in shadow.ledger] == ["shed"] * 2 + ["update"] * 2
        assert shadow.ledger.totals.fired == 2 * BATCHES


def test_loop_closed_without_a_goodbye() -> None:
    """`loop.close()` cancels nothing: the accounts are settled by the next drain."""
    with FaultServer() as server:
        plain = asyncio.run(arun(server, None))
        shadow = shadow_on(server, deadline=60.0)
        loop = asyncio.new_event_loop()

        async def main() -> Outcome:
            async with async_agent(server, shadow) as agent:
                agent.interrupt_after = ["tools"]
                outcome: Outcome = await agent.arun()
            return outcome

        assert loop.run_until_complete(main()).error is None
        for task in asyncio.all_tasks(loop):  # what asyncio says of them is not ours to test
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        shadow.drain_sync(timeout=0)
        accounted(shadow, fired=1)
        assert run("async", server, shadow, thread="next") == plain


@pytest.mark.parametrize("turns", range(6))
def test_loop_ends_while_connections_close(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the end of the loop cuts the closing short, every connection is closed."""

    async def main(server: FaultServer, shadow: Shadow) -> None:
        last, add = asyncio.Event(), Ledger.add

        def spy(ledger: Ledger, row: LedgerRow) -> None:
            add(ledger, row)
            if len(ledger) == BATCHES:
                last.set()

        monkeypatch.setattr(Ledger, "add", spy)
        async with async_agent(server, shadow) as agent:
            await agent.arun()
        await last.wait()
        for _ in range(turns):
            await asyncio.sleep(0)

    with FaultServer() as server:
        shadow = shadow_on(server)
        asyncio.run(main(server, shadow))
    accounted(shadow, fired=BATCHES)


def test_nothing_is_left_of_loops_and_shadows() -> None:
    """A shadow keeps no finished loop alive, and its own loop's thread ends with it."""

    async def main(shadow: Shadow, number: int) -> weakref.ref[asyncio.AbstractEventLoop]:
        await arun(server, shadow, thread=f"t{number}")
        await shadow.drain(timeout=10)
        return weakref.ref(asyncio.get_running_loop())

    with FaultServer() as server:
        shadow = shadow_on(server)
        before = set(threading.enumerate())
        run("sync", server, shadow, thread="own")
        new = set(threading.enumerate()) - before
        (own,) = [thread for thread in new if thread.name == "langgraph-shadow"]
        loops = [asyncio.run(main(shadow, number)) for number in range(3)]
        gc.collect()
        assert [loop() for loop in loops] == [None] * 3
        del shadow
        gc.collect()
        own.join(10)
        assert not own.is_alive()


@pytest.mark.parametrize("mode", MODES)
def test_process_ends_with_branches_in_flight(mode: Mode) -> None:
    """Nobody drains: the process ends at once, with nothing on stderr."""
    with FaultServer(branch=scripts.slow_headers) as server:
        leaving = subprocess.run(
            [sys.executable, "-m", "tests.faults.leaving", mode, str(server.port)],
            cwd=ROOT,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert (leaving.returncode, leaving.stderr, leaving.stdout) == (0, b"", b"Glaciers shrink.\n")


@pytest.mark.parametrize("mode", MODES)
def test_fork(mode: Mode) -> None:
    """A child of a process with a branch in flight works, and leaves its parent's branch alone."""
    seen: list[ShadowEvent] = []

    def child() -> None:
        assert run(mode, server, shadow, thread="child") == plain
        assert shadow.drain_sync(timeout=10)
        accounted(shadow, fired=2 * BATCHES)
        assert [row.verdict for row in shadow.ledger] == ["update"] * 2 * BATCHES
        assert len(seen) == 2 * BATCHES

    with FaultServer() as server:
        shadow = shadow_on(server, max_in_flight=1, on_event=seen.append)
        run("sync", server, shadow, thread="parent")
        shadow.drain_sync(timeout=10)
        plain = run(mode, server)
        server.arrived.clear()
        server.branch = scripts.from_the_second(scripts.slow_headers, serve_chat)
        with sync_agent(server, shadow) as agent:
            agent.interrupt_after = ["tools"]
            agent.run("held")
        shadow.drain_sync(timeout=0)
        assert server.arrived.wait(10)
        assert in_a_fork(child) == "fine"
        assert shadow.ledger.totals.fired == BATCHES
        server.restart()
        assert shadow.drain_sync(timeout=10)
        accounted(shadow, fired=BATCHES + 1)


def in_a_fork(work: Any) -> str:
    """Run `work` in a forked child; returns "fine", or what went wrong there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "fine"
        try:
            work()
        except BaseException as error:
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    try:
        if not select.select([reading], [], [], 30)[0]:
            os.kill(pid, signal.SIGKILL)
            return "stuck"
        return os.read(reading, 65536).decode()
    finally:
        os.close(reading)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_tool_raises(mode: Mode, error: type[BaseException]) -> None:
    """The tool's error is the run's error, whatever a branch is doing at that time."""

    def fail(call: int) -> None:
        if call == 1:
            server.arrived.wait(10)
            raise error("stop")

    with FaultServer() as server:
        server.arrived.set()
        plain = interrupted(mode, server, None, fail)
        assert plain.error == (error, "stop")
        server.arrived.clear()
        shadow = shadow_on(server)
        assert interrupted(mode, server, shadow, fail) == plain
        assert shadow.drain_sync(timeout=10)
    accounted(shadow, fired=1)


def interrupted(mode: Mode, server: FaultServer, shadow: Shadow | None, hook: Any) -> Outcome:
    """A run whose error may end the loop itself."""
    if mode == "sync":
        with sync_agent(server, shadow, hook) as agent:
            return agent.run()
    made: list[Any] = []

    async def ahook(call: int) -> None:
        hook(call) if call == 0 else await asyncio.to_thread(server.arrived.wait, 10)
        hook(call)

    async def main() -> Outcome:
        async with async_agent(server, shadow, hook, ahook) as agent:
            made.append(agent)
            return await agent.arun()  # type: ignore[no-any-return]

    try:
        return asyncio.run(main())
    except KeyboardInterrupt as raised:
        outcome: Outcome = made[0].outcome("t", [], (type(raised), str(raised)))
        return outcome


@pytest.mark.parametrize("mode", MODES)
def test_orchestrator_loses_its_server(mode: Mode) -> None:
    """The agent's own error stays its own."""

    def stop(call: int) -> None:
        if call == 1:
            server.arrived.wait(10)
            server.stop()

    with FaultServer() as server:
        server.arrived.set()
        plain = run(mode, server, hook=stop)
        assert plain.error is not None
        server.arrived.clear()
        server.start()
        shadow = shadow_on(server, deadline=1.0)
        assert run(mode, server, shadow, stop) == plain
    accounted(shadow, fired=BATCHES)


def test_cancelled() -> None:
    """A task that is cancelled in mid-run ends as cancelled; its branch is let go."""

    async def main(shadow: Shadow | None) -> Outcome:
        inside = asyncio.Event()

        async def hang(call: int) -> None:
            if call == 1:
                await asyncio.to_thread(server.arrived.wait, 10)
                inside.set()
                await asyncio.Event().wait()

        async with async_agent(server, shadow, ahook=hang) as agent:
            task = asyncio.create_task(agent.arun())
            await inside.wait()
            task.cancel()
            outcome: Outcome = await task
        if shadow is not None:
            assert await shadow.drain(timeout=10)
        return outcome

    with FaultServer() as server:
        server.arrived.set()
        plain = asyncio.run(main(None))
        assert plain.error is not None
        assert plain.error[0] is asyncio.CancelledError
        server.arrived.clear()
        shadow = shadow_on(server)
        assert asyncio.run(main(shadow)) == plain
    accounted(shadow, fired=1)


def test_two_loops_at_once() -> None:
    """One shadow, two threads, two loops: each has its own connections and all its rows."""
    both = threading.Barrier(2, timeout=20)
    outcomes: dict[str, Outcome] = {}

    async def main(thread: str) -> None:
        def meet(call: int) -> None:
            if call == 1:
                both.wait()

        async with async_agent(server, shadow, meet) as agent:
            outcomes[thread] = await agent.arun(thread)
        assert await shadow.drain(timeout=20)

    with FaultServer() as server:
        plain = asyncio.run(arun(server, None))
        shadow = shadow_on(server)
        workers = [
            threading.Thread(target=asyncio.run, args=(main(name),), daemon=True) for name in "ab"
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert outcomes == {"a": plain, "b": plain}
    accounted(shadow, fired=2 * BATCHES)
    assert {row.verdict for row in shadow.ledger} == {"update"}


@pytest.mark.parametrize("mode", MODES)
def test_two_hundred_at_once(mode: Mode) -> None:
    """Two hundred runs at once on one shadow: nothing is lost, what is too much is shed."""
    names = [f"t{i}" for i in range(MANY)]
    outcomes: dict[str, Outcome] = {}
    with FaultServer() as server:
        plain = run("sync", server)
        shadow = shadow_on(server)
        if mode == "sync":
            start = threading.Barrier(MANY, timeout=30)

            def work(name: str) -> None:
                start.wait()
                outcomes[name] = agent.run(name)

            with sync_agent(server, shadow) as agent:
                workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in names]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join(60)
            assert shadow.drain_sync(timeout=60)
        else:

            async def main() -> None:
                async with async_agent(server, shadow) as agent:
                    done = await asyncio.gather(*(agent.arun(name) for name in names))
                outcomes.update(zip(names, done, strict=True))
                assert await shadow.drain(timeout=60)

            asyncio.run(main())
    assert set(outcomes) == set(names)
    for outcome in outcomes.values():
        assert (outcome.messages, outcome.error) == (plain.messages, None)
    accounted(shadow, fired=MANY * BATCHES)
    assert {row.verdict for row in shadow.ledger} <= {"update", "shed"}


def test_the_comparison_can_fail() -> None:
    """Two different runs leave two different outcomes."""

    def fail(_: int) -> None:
        raise RuntimeError("stop")

    with FaultServer() as server:
        assert run("sync", server, hook=fail) != run("sync", server)
