"""The orchestrator's and the branches' requests really carry the session, through every door."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import DefaultAsyncHttpxClient

from langgraph_shadow import Affinity, Shadow
from tests.agents import created, hand_built
from tests.faults.harness import BRANCH
from tests.faults.server import INSTRUCTION, MODEL, FaultServer
from tests.routers import HashRouter, Sent

BATCHES = 2
THREADS = 9
AFFINITY = Affinity.for_router("vllm-router")


@pytest.fixture
def router() -> Iterator[HashRouter]:
    with FaultServer() as one, FaultServer() as two, HashRouter([one.port, two.port]) as running:
        yield running


class TracedChat(ChatOpenAI):
    """A model whose every request a tracer gives a fresh id."""

    def _get_request_payload(self, input_: Any, *, stop: Any = None, **kwargs: Any) -> Any:
        payload = super()._get_request_payload(input_, stop=stop, **kwargs)
        fresh = {"X-Request-ID": f"request-{next(_requests)}"}
        return {**payload, "extra_headers": {**payload.get("extra_headers", {}), **fresh}}


_requests = itertools.count()


def model(router: HashRouter, kind: type[ChatOpenAI] = ChatOpenAI, **options: Any) -> ChatOpenAI:
    return kind(
        base_url=router.base_url,
        model=MODEL,
        api_key="x",
        temperature=0,
        use_responses_api=False,
        http_async_client=DefaultAsyncHttpxClient(),
        **options,
    )


def shadow_of(llm: ChatOpenAI, **options: Any) -> Shadow:
    return Shadow(llm, branches=[BRANCH], late="deliver", **{"affinity": AFFINITY, **options})


def branches(router: HashRouter) -> tuple[list[Sent], list[Sent]]:
    """The orchestrator's requests and the branches'."""
    generated = router.generated()
    ours = [r for r in generated if INSTRUCTION in str(r.body.get("messages"))]
    return [r for r in generated if r not in ours], ours


async def run(graph: Any, thread: str, **configurable: Any) -> None:
    config = {"configurable": {"thread_id": thread, **configurable}}
    question = {"messages": [("user", f"How fast do glaciers retreat? ({thread})")]}
    async for _ in graph.astream(question, config, stream_mode=["messages", "custom"]):
        pass


def by_watch(llm: ChatOpenAI, shadow: Shadow) -> Any:
    return hand_built(shadow.watch(llm), batches=BATCHES).compile(checkpointer=InMemorySaver())


def by_watch_and_attach(llm: ChatOpenAI, shadow: Shadow) -> Any:
    return shadow.attach(by_watch(llm, shadow))


def by_middleware(llm: ChatOpenAI, shadow: Shadow) -> Any:
    return created(llm, batches=BATCHES, middleware=[shadow.middleware()])


@pytest.mark.parametrize("build", [by_watch, by_watch_and_attach, by_middleware])
async def test_trunk_and_branch_carry_the_same_session(router: HashRouter, build: Any) -> None:
    llm = model(router)
    shadow = shadow_of(llm)
    graph = build(llm, shadow)
    await run(graph, "ada@example.org")
    await run(graph, "bob@example.org")
    assert await shadow.drain(timeout=60)

    orchestrator, ours = branches(router)
    assert len(ours) == 2 * BATCHES
    for requests in (orchestrator, ours):
        assert {r.headers.get("x-session-id") for r in requests} == {
            AFFINITY.session("ada@example.org"),
            AFFINITY.session("bob@example.org"),
        }
    for request in router.requests:
        assert "ada@example" not in str(request.headers)
    assert [row.predicted == row.cached for row in shadow.ledger] == [True] * len(ours)
    assert shadow.ledger.guard == ()


def test_the_sync_door_too(router: HashRouter) -> None:
    llm = model(router)
    shadow = shadow_of(llm)
    graph = by_watch(llm, shadow)
    graph.invoke({"messages": [("user", "How fast?")]}, {"configurable": {"thread_id": "t"}})
    assert shadow.drain_sync(timeout=60)
    orchestrator, ours = branches(router)
    assert {r.headers.get("x-session-id") for r in orchestrator + ours} == {AFFINITY.session("t")}
    assert len(ours) == BATCHES


async def test_callbacks_alone_cannot_and_say_so_once(
    router: HashRouter, caplog: pytest.LogCaptureFixture
) -> None:
    llm = model(router)
    shadow = shadow_of(llm)
    graph = shadow.attach(hand_built(llm, batches=BATCHES).compile())
    with caplog.at_level(logging.WARNING, "langgraph_shadow"):
        await run(graph, "t")
        await run(graph, "u")
        assert await shadow.drain(timeout=60)
    said = [r.message for r in caplog.records if "carry no session" in r.message]
    assert len(said) == 1
    assert "shadow.watch(llm)" in said[0]
    # what the orchestrator does not send, a branch must not send either
    assert all("x-session-id" not in r.headers for r in router.generated())
    assert len(branches(router)[1]) == 2 * BATCHES


async def test_a_tracers_request_id_does_not_become_the_hash_key(router: HashRouter) -> None:
    llm = model(router, TracedChat)
    shadow = shadow_of(llm)
    graph = by_watch(llm, shadow)
    for number in range(THREADS):
        await run(graph, f"thread {number}")
    assert await shadow.drain(timeout=60)

    orchestrator, ours = branches(router)
    assert len({r.headers["x-request-id"] for r in orchestrator}) == len(orchestrator)
    assert all("x-request-id" not in r.headers for r in ours)
    workers: dict[str, set[int]] = {}
    for request in orchestrator + ours:
        workers.setdefault(request.headers["x-session-id"], set()).add(request.worker)
    assert len(workers) == THREADS
    assert all(len(seen) == 1 for seen in workers.values())
    assert {r.worker for r in ours} == {0, 1}
    assert all(row.predicted == row.cached and not row.miss for row in shadow.ledger)


async def test_without_a_session_the_ledger_says_wrong_replica(router: HashRouter) -> None:
    """The same agent with a tracer's id as the only key: what the setting is there to prevent."""
    llm = model(router, TracedChat)
    shadow = shadow_of(llm, affinity=None)
    graph = by_watch(llm, shadow)
    for number in range(THREADS):
        await run(graph, f"thread {number}")
    assert await shadow.drain(timeout=60)
    missed = [row for row in shadow.ledger if row.miss]
    assert missed
    assert {row.miss for row in missed} == {"wrong replica or evicted"}
    assert f"{len(missed)} missed (wrong replica or evicted)" in shadow.ledger.summary()
    assert "wrong replica or evicted" in " ".join(shadow.ledger._repr_html_().split())


async def test_the_tenants_salt_is_in_the_trunk_and_the_branch(router: HashRouter) -> None:
    llm = model(router)
    affinity = Affinity.for_router("vllm-router", tenant="team")
    shadow = shadow_of(llm, affinity=affinity)
    graph = by_watch(llm, shadow)
    await run(graph, "t", team="north")
    await run(graph, "u", team="south")
    assert await shadow.drain(timeout=60)
    orchestrator, ours = branches(router)
    salts = {
        team: affinity.route("", {"team": team}).body["cache_salt"] for team in ("north", "south")
    }
    for requests in (orchestrator, ours):
        assert {(r.headers["x-session-id"], r.body["cache_salt"]) for r in requests} == {
            (affinity.session("t"), salts["north"]),
            (affinity.session("u"), salts["south"]),
        }
    assert shadow.ledger.guard == ()


async def test_what_the_user_sends_stays(router: HashRouter) -> None:
    llm = model(
        router, model_kwargs={"extra_headers": {"x-session-id": "mine"}}, extra_body={"top_k": 1}
    )
    shadow = shadow_of(llm, affinity=Affinity(header="X-Session-ID", field="user"))
    await run(by_watch(llm, shadow), "t")
    assert await shadow.drain(timeout=60)
    orchestrator, ours = branches(router)
    assert {r.headers["x-session-id"] for r in orchestrator + ours} == {"mine"}
    assert all("top_k" in r.body or "structured_outputs" in r.body for r in orchestrator)
    assert {r.body["user"] for r in orchestrator + ours} == {Affinity().session("t")}


async def test_a_repaired_model_carries_it_too(router: HashRouter) -> None:
    llm = model(router)
    shadow = shadow_of(llm, guard="repair")
    graph = hand_built(shadow.stabilise(llm), batches=BATCHES).compile()
    await run(graph, "t")
    assert await shadow.drain(timeout=60)
    orchestrator, ours = branches(router)
    assert {r.headers["x-session-id"] for r in orchestrator + ours} == {AFFINITY.session("t")}
    assert len(ours) == BATCHES
