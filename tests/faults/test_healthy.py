"""Without a fault the fake server is a vLLM: updates, and hits as predicted."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.faults.harness import BATCHES, MODES, Mode, accounted, run, shadow_on
from tests.faults.server import SENTENCE, FaultServer, Reply, serve_chat


@pytest.mark.parametrize("mode", MODES)
def test_no_fault(mode: Mode) -> None:
    with FaultServer() as server:
        plain = run(mode, server)
        assert plain.error is None
        shadow = shadow_on(server)
        assert run(mode, server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert (row.verdict, row.text, row.reason) == ("update", SENTENCE, "")
        assert row.predicted == row.cached
        assert row.cached


def test_a_branch_that_comes_before_its_orchestrator() -> None:
    """Without a stream nobody sees when a prompt is computed; the row says what happened."""
    served = threading.Semaphore(0)

    async def late(reply: Reply) -> None:
        if any(m["role"] == "tool" for m in reply.body["messages"]):
            await asyncio.to_thread(served.acquire, timeout=10)
        await serve_chat(reply)

    async def branch(reply: Reply) -> None:
        await serve_chat(reply)
        served.release()

    with FaultServer() as server:
        plain = run("sync", server)
    with FaultServer(orchestrator=late, branch=branch) as server:
        shadow = shadow_on(server)
        assert run("sync", server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert row.predicted is not None
        assert row.cached is not None
        assert 0 < row.cached < row.predicted
        assert row.miss == "ahead of the orchestrator"
