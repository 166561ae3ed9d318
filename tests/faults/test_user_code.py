"""The user's own functions: they may raise, block, or be too slow for what comes in."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from langgraph_shadow import Branch, Shadow
from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.delivery.sinks import FunctionSink, QueueSink
from langgraph_shadow.hosts import Hosts
from tests.faults.harness import (
    BATCHES,
    MODES,
    Mode,
    Outcome,
    accounted,
    async_agent,
    run,
    shadow_on,
    sync_agent,
)
from tests.faults.server import INSTRUCTION, FaultServer, serve_chat


def refuse(_: object) -> bool:
    raise RuntimeError("no")


async def refuse_later(_: object) -> None:
    raise ValueError("no")


def leave(_: object) -> None:
    raise SystemExit(3)


async def cancel(_: object) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [refuse, refuse_later, leave, cancel])
def test_on_event_raises(mode: Mode, function: Any) -> None:
    with FaultServer() as server:
        plain = run(mode, server)
        shadow = shadow_on(server, on_event=function)
        assert run(mode, server, shadow) == plain
        shadow.drain_sync(timeout=10)
    accounted(shadow, fired=BATCHES)
    assert [row.verdict for row in shadow.ledger] == ["update"] * BATCHES


@pytest.mark.parametrize("mode", MODES)
def test_on_event_blocks(mode: Mode) -> None:
    """The run ends and has its rows while the function still sits on the first event."""
    go, seen = threading.Event(), []

    def block(event: ShadowEvent) -> None:
        go.wait(30)
        seen.append(event)

    async def arun(server: FaultServer, shadow: Shadow) -> Outcome:
        async with async_agent(server, shadow) as agent:
            outcome: Outcome = await agent.arun()
        while len(shadow.ledger) < BATCHES:
            await shadow.drain(timeout=0.05)
        return outcome

    with FaultServer() as server:
        plain = run(mode, server)
        shadow = shadow_on(server, on_event=block)
        if mode == "sync":
            with sync_agent(server, shadow) as agent:
                assert agent.run() == plain
            while len(shadow.ledger) < BATCHES:
                shadow.drain_sync(timeout=0.05)
        else:
            assert asyncio.run(arun(server, shadow)) == plain
        assert seen == []
        accounted(shadow, fired=BATCHES)
        go.set()
        shadow.drain_sync(timeout=10)
    assert len(seen) == BATCHES


@pytest.mark.parametrize("mode", MODES)
def test_when_raises(mode: Mode) -> None:
    """The branch is not due; its neighbour is."""
    branches = [
        Branch(name="never", instruction=INSTRUCTION, when=refuse),
        Branch(name="always", instruction=INSTRUCTION),
    ]
    with FaultServer() as server:
        plain = run(mode, server)
        shadow = shadow_on(server, branches=branches)
        assert run(mode, server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    assert {row.branch for row in shadow.ledger} == {"always"}


@pytest.mark.parametrize("mode", MODES)
def test_redact_raises(mode: Mode) -> None:
    """What was not looked at is not shown."""
    seen: list[ShadowEvent] = []
    with FaultServer() as server:
        plain = run(mode, server)
        shadow = shadow_on(server, redact=refuse, on_event=seen.append)
        assert run(mode, server, shadow) == plain
        shadow.drain_sync(timeout=10)
    accounted(shadow, fired=BATCHES)
    assert [event.text for event in seen] == ["", ""]


@pytest.mark.parametrize("mode", MODES)
def test_more_batches_than_places(mode: Mode) -> None:
    """One branch runs, one waits, the others are shed; the newest one is the one that waited."""
    threads = ["a", "b", "c", "d"]

    async def held(reply: Any) -> None:
        await reply.wait_for(server.go)
        await serve_chat(reply)

    with FaultServer(branch=held) as server:
        plain = run(mode, server)
        shadow = shadow_on(server, max_in_flight=1, max_waiting=1)
        if mode == "sync":
            with sync_agent(server, shadow) as agent:
                assert [agent.run(thread) for thread in threads] == [plain] * 4
            server.go.set()
            assert shadow.drain_sync(timeout=30)
        else:

            async def main() -> None:
                async with async_agent(server, shadow) as agent:
                    assert [await agent.arun(thread) for thread in threads] == [plain] * 4
                server.go.set()
                assert await shadow.drain(timeout=30)

            asyncio.run(main())
    accounted(shadow, fired=4 * BATCHES)
    totals = shadow.ledger.totals
    assert totals.updates >= 2
    assert totals.updates + totals.shed == 4 * BATCHES
    assert {r.reason for r in shadow.ledger if r.verdict == "shed"} == {
        "newer batches were waiting"
    }


def test_full_function_queue() -> None:
    """A function that blocks loses the events that come in meanwhile, and nothing waits for it."""
    entered, go, seen = threading.Event(), threading.Event(), []

    def block(event: ShadowEvent) -> None:
        entered.set()
        go.wait(30)
        seen.append(event.branch)

    sink = FunctionSink(block, size=2)
    assert sink.publish(event("0"))
    assert entered.wait(10)
    assert [sink.publish(event(str(i))) for i in range(1, 5)] == [True, True, False, False]
    go.set()
    sink.join(10)
    assert seen == ["0", "1", "2"]


async def test_full_subscription() -> None:
    """A reader that is too slow finds the newest events."""
    sink = QueueSink(Hosts(), size=2)
    events = sink.subscribe()
    for i in range(5):
        assert sink.publish(event(str(i)))
    sink.close()
    assert [e.branch async for e in events] == ["3", "4"]


def event(branch: str) -> ShadowEvent:
    return ShadowEvent(type="shadow.update", branch=branch, text="x")
