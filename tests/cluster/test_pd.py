"""A real prefill and decode server with KV return, behind the examples' conversation proxy."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from openai import DefaultAsyncHttpxClient

from langgraph_shadow import Affinity, Shadow, user_update
from langgraph_shadow.bench.looping import Looping, looping_agent
from langgraph_shadow.bench.pd import Front, front_of
from langgraph_shadow.server.metrics import fetch_metrics
from langgraph_shadow.server.pair import PrefillDecode, Transfer
from langgraph_shadow.server.pinning import threads
from langgraph_shadow.trunk.model import TrunkKey
from tests.cluster.conftest import SMALL, need

ROOT = Path(__file__).resolve().parents[2]
PROXY = ROOT / "examples" / "pd_proxy.py"
TIMEOUT_S = 300.0
TOKENS = 6
BATCHES = 2
NOISE = 1e-3
"""Nats. The servers compute in float32: in bfloat16 a logit is right to an eighth, and a decode
step differs from a prefill by as much on one server too."""

AFFINITY = Affinity(header="X-Session-ID", conversation=True)
WORDS = [
    *("ice", "river", "sand", "snow", "water", "mountain", "winter", "summer", "year", "stone"),
    *("wind", "light", "road", "house", "time", "people", "world", "city", "night", "day"),
    *("paper", "music", "number", "story", "money", "letter", "family", "country", "market"),
]

Message = dict[str, Any]


class Pair:
    """The two servers and the proxy, as tests see them."""

    def __init__(self, servers: PrefillDecode, front: Front) -> None:
        self.servers, self.front, self.url = servers, front, front.url
        self.words = [ids[0] for word in WORDS if len(ids := self._ids(f" {word}")) == 1]
        assert len(self.words) > len(WORDS) // 2

    def _ids(self, text: str) -> list[int]:
        body = {"model": self.servers.model, "prompt": text, "add_special_tokens": False}
        url = f"{self.servers.decode.root_url}/tokenize"
        found: list[int] = httpx2.post(url, json=body, trust_env=False).json()["tokens"]
        return found

    @property
    def fields(self) -> Message:
        """Answers are words of one token each, so that their text has one spelling in tokens."""
        return {"allowed_token_ids": self.words, "ignore_eos": True}

    def ask(self, url: str, messages: Sequence[Any], *, headers: Any = None, **fields: Any) -> str:
        answer = self._send(url, messages, headers=headers, **fields)
        text: str = answer["choices"][0]["message"]["content"]
        return text

    def _send(
        self, url: str, messages: Sequence[Any], *, headers: Any = None, **fields: Any
    ) -> Any:
        body = {
            "model": self.servers.model,
            "messages": list(messages),
            "max_tokens": TOKENS,
            "temperature": 0,
            **self.fields,
            **fields,
        }
        path = f"{url}/v1/chat/completions"
        answer = httpx2.post(path, json=body, headers=headers, timeout=TIMEOUT_S, trust_env=False)
        answer.raise_for_status()
        return answer.json()

    def read(self, url: str, messages: Sequence[Any], **fields: Any) -> dict[str, float]:
        """Log probabilities of the next word."""
        answer = self._send(url, messages, max_tokens=1, logprobs=True, top_logprobs=20, **fields)
        tops = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return {top["token"]: top["logprob"] for top in tops}

    def alone(self, messages: Sequence[Any], **fields: Any) -> str:
        """What one server answers that computes everything itself."""
        salt = uuid4().hex
        return self.ask(self.servers.decode.root_url, messages, cache_salt=salt, **fields)

    def seen(self) -> list[Message]:
        """What the proxy reported, oldest first."""
        return self.front.reports()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    need("vllm_router", "nixl")
    # no cache on the prefill server: all that it finds was read back
    transfer = Transfer(kv_recompute_threshold=8)
    servers = PrefillDecode(
        "tiny",
        served_model_name="m",
        transfer=transfer,
        prefill_cache=False,
        env=SMALL,
        extra_args=("--dtype", "float32"),
    )
    with servers, front_of(servers, PROXY) as front:
        pair = Pair(servers, front)
        shake_hands(pair)
        yield pair


def shake_hands(pair: Pair) -> None:
    """The first transfer waits five seconds for NIXL's handshake, which a busy machine may miss."""
    for _ in range(5):
        try:
            pair.ask(pair.url, opening())
        except httpx2.HTTPStatusError:
            continue
        return
    pytest.fail("the servers never exchanged a block")


def opening() -> list[Message]:
    """A question of its own, long enough for some blocks."""
    return [{"role": "user", "content": f"{uuid4().hex}: " + "where does the ice go? " * 20}]


def then(messages: Sequence[Message], answer: str, question: str) -> list[Message]:
    said = {"role": "assistant", "content": answer}
    return [*messages, said, {"role": "user", "content": question}]


def test_blocks_come_back_and_the_answers_are_those_of_one_server(pair: Pair) -> None:
    messages, conversation = opening(), uuid4().hex
    for turn in range(3):
        answer = pair.ask(pair.url, messages, conversation_id=conversation)
        assert answer == pair.alone(messages)
        report = pair.seen()[-1]
        assert report["handle"] is (turn > 0)
        assert (report["prefill_cached"] > 0) is (turn > 0)
        assert report["prefill_cached"] == (report["handle_tokens"] or 0)
        messages = then(messages, answer, f"And then? {turn}")


@pytest.mark.skipif(sys.platform != "linux", reason="servers are pinned on Linux only")
def test_each_server_has_a_core_of_its_own(pair: Pair) -> None:
    """NIXL's connector moves the model of every server on a machine to the same core."""
    used = [
        {tuple(os.sched_getaffinity(thread)) for thread in threads(server.pid)}
        for server in (pair.servers.prefill, pair.servers.decode)
    ]
    assert [len(cores) for cores in used] == [1, 1]
    assert used[0] != used[1]


def test_why_a_branch_must_not_share_the_conversation(pair: Pair) -> None:
    """The connector counts tokens: the branch's blocks are read as if they were the answer's.

    And they stay: the decode server keeps what was computed on them under the right prompt's hash,
    so whoever sends that prompt next is answered by them, on whatever conversation.
    """
    told = {"role": "user", "content": "Tell the person what was found, in one sentence. " * 8}
    wrong_by = {}
    for name, branch in (("shared", {"conversation_id": "shared"}), ("own", {})):
        salt = {"cache_salt": uuid4().hex}  # or the decode server's cache would mix the two up
        messages = opening()
        answer = pair.ask(pair.url, messages, conversation_id=name, **salt)
        pair.ask(pair.url, [*messages, told], **branch, **salt)
        following = then(messages, answer, "And what did the people say of it that winter? " * 8)
        read = pair.read(pair.url, following, conversation_id=name, **salt)
        report = pair.seen()[-1]
        assert report["handle"] is True
        assert report["prefill_cached"] > 0
        decode = pair.servers.decode.root_url
        later = pair.read(decode, following, **salt)
        truth = pair.read(decode, following, cache_salt=uuid4().hex)
        wrong_by[name] = [distance(found, truth) for found in (read, later)]
    assert max(wrong_by["own"]) < NOISE, wrong_by
    assert min(wrong_by["shared"]) > 10 * NOISE, wrong_by  # and no error


def distance(one: dict[str, float], other: dict[str, float]) -> float:
    """The largest difference between two readings of the same words."""
    both = one.keys() & other.keys()
    assert both
    return max(abs(one[word] - other[word]) for word in both)


class Agent:
    """A looping agent on the proxy; each tool waits until the last turn's tokens were proved."""

    def __init__(self, pair: Pair, *, branches: bool) -> None:
        self.llm = Looping(
            base_url=f"{pair.url}/v1",
            model=pair.servers.model,
            api_key="x",
            temperature=0,
            max_tokens=TOKENS,
            batches=BATCHES,
            streaming=True,
            stream_usage=True,
            use_responses_api=False,
            timeout=TIMEOUT_S,
            extra_body=pair.fields,
            http_async_client=DefaultAsyncHttpxClient(timeout=TIMEOUT_S),
        )
        due = [user_update()] if branches else []
        limits: Any = {"max_queue": None, "max_kv_usage": None, "timeout": TIMEOUT_S}
        self.shadow = Shadow(
            self.llm, branches=due, affinity=AFFINITY, guard="warn", late="deliver", **limits
        )
        self.saver = InMemorySaver()
        self.graph = looping_agent(self.shadow.watch(self.llm), _tool(self.shadow), self.shadow)
        self.graph.checkpointer = self.saver

    async def run(self, thread: str, question: str) -> list[Any]:
        await settled(self.shadow)
        config: Any = {"configurable": {"thread_id": thread}}
        asked: Any = {"messages": [HumanMessage(question)]}
        state = await self.graph.ainvoke(asked, config)
        messages: list[Any] = state["messages"]
        return messages

    async def close(self) -> None:
        assert await self.shadow.drain(timeout=TIMEOUT_S)
        await self.shadow.aclose()


async def settled(shadow: Shadow) -> None:
    """Wait until what the last turn left behind was proved."""
    await asyncio.gather(*map(asyncio.wrap_future, shadow._runner._errands.open()))


def _tool(shadow: Shadow) -> BaseTool:
    async def search(topic: str, place: int = 0) -> str:
        """Search the archive."""
        await settled(shadow)
        return f"{topic}: the ice went into the river and the river into the sea."

    return StructuredTool.from_function(coroutine=search)


async def test_the_orchestrator_finds_the_same_with_and_without_shadows(pair: Pair) -> None:
    question = "Where does the ice of the high valley go? " * 10
    found: dict[bool, list[Any]] = {}
    answers: dict[bool, list[str]] = {}
    for branches in (False, True):
        agent = Agent(pair, branches=branches)
        before = len(pair.seen())
        messages = await agent.run("t", question)
        await agent.close()
        reports = pair.seen()[before:]
        own = [r for r in reports if r["conversation"] is not None]
        answers[branches] = [m.content for m in messages if isinstance(m, AIMessage)]
        found[branches] = [(r["handle"], r["prompt_tokens"], r["prefill_cached"]) for r in own]
        assert len({r["conversation"] for r in own}) == 1
        assert len(reports) - len(own) == (BATCHES if branches else 0)
        assert not agent.shadow._routing._conversations.renamed
        rows = list(agent.shadow.ledger)
        assert [row.verdict in ("update", "skip") for row in rows] == [True] * len(rows)
    assert [handle for handle, *_ in found[True]] == [False, True, True]
    assert found[True] == found[False]
    assert answers[True] == answers[False]


async def test_an_edited_history_gets_a_name_of_its_own_and_the_right_answer(pair: Pair) -> None:
    agent = Agent(pair, branches=False)
    await agent.run("t", "Where does the snow go?")
    config: Any = {"configurable": {"thread_id": "t"}}
    state = agent.graph.get_state(config)
    first = state.values["messages"][0]
    edited = HumanMessage("Where does the sand go, then, and who has seen it?", id=first.id)
    agent.graph.update_state(config, {"messages": [edited]})
    before = len(pair.seen())
    messages = await agent.run("t", "Say it once more.")
    await agent.close()
    report = pair.seen()[before]
    assert report["handle"] is False
    assert report["prefill_cached"] == 0
    assert agent.shadow._routing._conversations.renamed == {
        "the prompt does not extend the turn before": 1
    }
    trunk = agent.shadow._guard.newest(TrunkKey("t", "", "agent"))
    assert trunk is not None
    assert "sand" in trunk.messages[1]["content"]
    prompt = {"tools": list(trunk.tools), "tool_choice": "none"}
    assert messages[-1].content == pair.alone(list(trunk.messages), **prompt)


def test_the_router_alone_gives_nothing_back(pair: Pair) -> None:
    """Why there is a proxy: vllm-router sends a request on, but keeps no handle between turns."""
    messages, session = opening(), uuid4().hex
    before = _read_back(pair)
    for turn in range(2):
        url = pair.servers.root_url
        answer = pair.ask(url, messages, headers={"X-Session-ID": session})
        assert answer == pair.alone(messages)
        messages = then(messages, answer, f"And then? {turn}")
    assert _read_back(pair) == before


def _read_back(pair: Pair) -> int:
    """Tokens that the prefill server has read from the decode server."""
    sources = fetch_metrics(pair.servers.prefill.root_url).prompt_tokens_by_source
    return sources["external_kv_transfer"]
