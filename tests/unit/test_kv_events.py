"""Which blocks a server holds, by its events; and what becomes of a branch whose prefix is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.runner import kv_events
from langgraph_shadow.runner.kv_events import KVEvents, Residency
from tests.faults.server import BLOCK_SIZE, FaultServer
from tests.routers import HashRouter
from tests.unit.test_affinity_requests import branches, by_watch, model, run, shadow_of

SIZE = 4


def stored(tokens: Sequence[int], *, salt: str | None = None, start: int = 0) -> dict[str, Any]:
    """The event for the blocks of a prompt from `start` on; a block's hash is its whole prefix."""
    ends = range(start + SIZE, len(tokens) + 1, SIZE)
    names = [_name(tokens[:end], salt) for end in ends]
    extras = [[salt] if salt and end == SIZE else None for end in ends]
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": _name(tokens[:start], salt) if start else None,
        "token_ids": list(tokens[start : start + SIZE * len(names)]),
        "block_size": SIZE,
        "extra_keys": extras if salt else None,
    }


def removed(tokens: Sequence[int], *, salt: str | None = None) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [_name(tokens, salt)], "medium": "CPU"}


def _name(tokens: Sequence[int], salt: str | None) -> bytes:
    return repr((salt, list(tokens))).encode()


def test_the_longest_prefix_counts_in_whole_blocks() -> None:
    held = Residency()
    held.saw(0, [stored(range(8))])
    held.saw(1, [stored(range(12), start=8)])
    assert held.held(range(14)) == 12
    assert held.held([*range(6), 99, 99]) == 4
    assert held.held([99]) == 0


def test_an_evicted_block_ends_the_prefix() -> None:
    held = Residency()
    held.saw(0, [stored(range(12)), removed(range(8))])
    assert held.held(range(12)) == 4
    held.saw(1, [stored(range(8), start=4)])
    assert held.held(range(12)) == 12


def test_a_tenants_blocks_are_its_own() -> None:
    held = Residency()
    held.saw(0, [stored(range(8), salt="north")])
    assert held.held(range(8), salt="north") == 8
    assert held.held(range(8), salt="south") == 0
    assert held.held(range(8)) == 0


def test_who_missed_something_knows_nothing_until_the_cache_is_cleared() -> None:
    held = Residency()
    assert held.held(range(8)) is None
    held.saw(7, [stored(range(8))])
    assert held.held(range(8)) is None
    held.saw(8, [{"type": "AllBlocksCleared"}])
    assert held.held(range(8)) == 0
    held.saw(9, [stored(range(8))])
    assert held.held(range(8)) == 8
    held.saw(11, [])
    assert held.held(range(8)) is None
    held.saw(0, [])  # the server was started anew
    assert held.held(range(8)) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 4)), max_size=30))
def test_it_holds_what_was_stored_and_not_removed(steps: list[tuple[bool, int, int]]) -> None:
    held, blocks = Residency(), set[tuple[int, int]]()
    held.saw(0, [])
    for number, (stores, first, count) in enumerate(steps, 1):
        prompt = [first] * SIZE * count
        if stores:
            held.saw(number, [stored(prompt)])
            blocks |= {(first, place) for place in range(1, count + 1)}
        else:
            held.saw(number, [removed(prompt)])
            blocks.discard((first, count))
    for first in range(4):
        known = next((n for n in range(5) if (first, n + 1) not in blocks), 4)
        assert held.held([first] * SIZE * 5) == known * SIZE


class Publisher:
    """A server's event socket."""

    def __init__(self, endpoint: str) -> None:
        self.socket: Any = zmq.Context.instance().socket(zmq.XPUB)
        self.socket.bind(endpoint)
        self.number = 0

    def wait(self) -> None:
        assert self.socket.poll(10_000)
        assert self.socket.recv() == b"\x01"  # somebody listens

    def send(self, *events: Mapping[str, Any]) -> None:
        payload = msgspec.msgpack.encode([0.0, list(events)])
        self.socket.send_multipart([b"kv", self.number.to_bytes(8, "big"), payload])
        self.number += 1


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/kv"


@pytest.fixture
def publisher(endpoint: str) -> Iterator[Publisher]:
    made = Publisher(endpoint)
    yield made
    made.socket.close(linger=0)


def until(done: Any) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_events_come_over_the_wire(endpoint: str, publisher: Publisher) -> None:
    held = Residency()
    events = KVEvents(endpoint, held)
    events.start()
    publisher.wait()
    publisher.send(stored(range(8)))
    until(lambda: held.held(range(8)) == 8)
    events.stop()
    until(lambda: not events._thread.is_alive())
    assert held.held(range(8)) is None


def test_a_broken_publisher_is_said_and_trusted_no_more(
    endpoint: str, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    held = Residency()
    KVEvents(endpoint, held).start()
    publisher.wait()
    publisher.send()
    until(lambda: held.complete)
    publisher.socket.send_multipart([b"kv", b"\0" * 8, b"\xc1"])
    until(lambda: "can no longer be read" in caplog.text)
    assert not held.complete


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"langgraph-shadow\[cluster\]"):
        KVEvents("ipc:///nowhere", Residency())


@pytest.fixture
def router() -> Iterator[HashRouter]:
    """In front of a server that has always just evicted everything."""
    with FaultServer(evicting=True) as server, HashRouter([server.port]) as running:
        yield running


async def test_a_branch_whose_prefix_is_gone_is_shed(
    router: HashRouter, endpoint: str, publisher: Publisher
) -> None:
    llm = model(router)
    shadow = shadow_of(llm, affinity=None, kv_events=endpoint)
    publisher.wait()
    publisher.send()  # everything is known, and nothing is held
    until(lambda: shadow._runner._residency.complete)
    await run(by_watch(llm, shadow), "t")
    assert await shadow.drain(timeout=60)
    assert [row.verdict for row in shadow.ledger] == ["shed", "shed"]
    for row in shadow.ledger:
        assert row.reason.startswith("its prefix is gone: it would cost ")
    assert not branches(router)[1]
    await shadow.aclose()


@pytest.mark.parametrize(("resident", "miss"), [(True, "wrong replica"), (False, "evicted")])
async def test_a_miss_is_told_apart(
    router: HashRouter, endpoint: str, publisher: Publisher, resident: bool, miss: str
) -> None:
    llm = model(router)
    shadow = shadow_of(llm, affinity=None, kv_events=endpoint, max_new_tokens=100_000)
    publisher.wait()
    publisher.send()
    residency = shadow._runner._residency
    until(lambda: residency.complete)
    if resident:
        residency.held = lambda tokens, salt=None: len(tokens) // BLOCK_SIZE * BLOCK_SIZE
    await run(by_watch(llm, shadow), "t")
    assert await shadow.drain(timeout=60)
    assert {row.miss for row in shadow.ledger} == {miss}
    await shadow.aclose()
