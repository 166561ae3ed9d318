"""A real server's KV events: what it holds, what it evicted, and the branch that is shed for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langchain_core.callbacks import BaseCallbackHandler

from langgraph_shadow import Shadow, user_update
from langgraph_shadow.runner.kv_events import KVEvents, Residency
from langgraph_shadow.server.local import LocalServer
from tests.agents import hand_built
from tests.cluster.conftest import SMALL, WAIT_S, need, until
from tests.conftest import model_at

BLOCKS = 48
BLOCK_SIZE = 32


class Speaking:
    """A server with a small cache that tells of its blocks."""

    def __init__(self, server: LocalServer, endpoint: str) -> None:
        self.server, self.endpoint = server, endpoint

    def cached(self, tokens: list[int], salt: str) -> int:
        """Has the server compute a prompt; returns the tokens that it found."""
        body = {"model": "m", "prompt": tokens, "max_tokens": 1, "cache_salt": salt}
        url = f"{self.server.base_url}/completions"
        answer = httpx2.post(url, json=body, timeout=WAIT_S, trust_env=False).json()
        return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    def forget(self) -> None:
        """Clears the cache; that is told with the next step, and a short prompt fills no block."""
        url = f"{self.server.root_url}/reset_prefix_cache"
        httpx2.post(url, trust_env=False).raise_for_status()
        self.cached([5] * (BLOCK_SIZE // 2), uuid4().hex)


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    need("zmq", "msgspec", servers=1)
    # where its endpoint is no `ipc://` and has no `*`, vLLM does not bind but connects
    endpoint = f"ipc://{tmp_path_factory.mktemp('kv')}/events"
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    flags = ["--kv-events-config", json.dumps(events), "--max-model-len", "1024"]
    cache = ["--num-gpu-blocks-override", str(BLOCKS)]
    env = {**SMALL, "VLLM_SERVER_DEV_MODE": "1"}  # for /reset_prefix_cache
    with LocalServer("tiny", served_model_name="m", extra_args=flags + cache, env=env) as server:
        yield Speaking(server, endpoint)


def known(speaking: Speaking, residency: Residency) -> None:
    """Everything is known once the cache was cleared while someone listened."""
    until(lambda: residency.complete and not residency._blocks, speaking.forget)


def test_what_is_held_is_what_the_server_finds(speaking: Speaking) -> None:
    residency = Residency()
    events = KVEvents(speaking.endpoint, residency)
    events.start()
    known(speaking, residency)
    tokens, salt = list(range(100, 100 + 5 * BLOCK_SIZE + 7)), uuid4().hex
    assert speaking.cached(tokens, salt) == 0
    until(lambda: residency.held(tokens, salt=salt) == 5 * BLOCK_SIZE)
    assert residency.held(tokens) == 0
    assert residency.held(tokens[: 3 * BLOCK_SIZE], salt=salt) == 3 * BLOCK_SIZE
    assert residency.held([9, *tokens], salt=salt) == 0
    assert speaking.cached(tokens, salt) == 5 * BLOCK_SIZE

    for number in range(3):  # more than the cache has room for
        speaking.cached([number + 7] * (BLOCKS // 2 * BLOCK_SIZE), uuid4().hex)
    until(lambda: residency.held(tokens, salt=salt) == 0)
    assert speaking.cached(tokens, salt) == 0
    events.stop()


class Forgets(BaseCallbackHandler):
    """Has the server forget everything right after the third answer."""

    run_inline = True

    def __init__(self, speaking: Speaking, residency: Residency) -> None:
        self.held: list[int] = []
        self._speaking, self._residency = speaking, residency

    def on_llm_end(self, *_: Any, **__: Any) -> None:
        until(lambda: bool(self._residency._blocks))
        self.held.append(len(self._residency._blocks))
        if len(self.held) == 3:
            until(lambda: not self._residency._blocks, self._speaking.forget)


async def test_a_branch_whose_prefix_was_evicted_is_shed(speaking: Speaking) -> None:
    llm = model_at(speaking.server)
    # under `gap` a branch leaves after the answer, here to a server that has forgotten its trunk
    limits: dict[str, Any] = {"launch": "gap", "max_kv_usage": None, "late": "deliver"}
    shadow = Shadow(llm, branches=[user_update()], kv_events=speaking.endpoint, **limits)
    residency = shadow._runner._residency
    assert residency is not None
    known(speaking, residency)
    forgets = Forgets(speaking, residency)
    graph = hand_built(shadow.watch(llm), batches=2).compile()
    question: Any = {"messages": [("user", "How fast do glaciers retreat?")]}
    config: Any = {"configurable": {"thread_id": "t"}, "callbacks": [forgets]}
    async for _ in graph.astream(question, config, stream_mode=["messages", "custom"]):
        pass
    assert await shadow.drain(timeout=WAIT_S)
    await shadow.aclose()
    first, second = sorted(shadow.ledger, key=lambda row: row.at)
    assert forgets.held[0] > 0
    assert (first.verdict in ("update", "skip"), first.miss) == (True, "")
    assert first.predicted == first.cached
    assert second.verdict == "shed"
    assert second.reason.startswith("its prefix is gone: it would cost ")
