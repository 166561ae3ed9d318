"""Two real servers behind the real router: who finds the blocks, and what a lost server costs."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langgraph.graph import MessagesState
from langgraph.prebuilt import ToolNode

from langgraph_shadow import Affinity, Shadow, user_update
from langgraph_shadow.bench import router
from langgraph_shadow.server.cluster import Replicas
from langgraph_shadow.server.local import LocalServer
from langgraph_shadow.server.metrics import fetch_metrics
from tests.agents import TOOLS, hand_built
from tests.cluster.conftest import until, wait_for_healthy
from tests.conftest import model_at

SHARE = 0.99
THREADS = 9


async def test_affinity_finds_what_one_server_holds(replicas: Replicas) -> None:
    report = await router.run(replicas, threads=THREADS, batches=2)
    arms = {row["arm"]: row for row in report.rows}
    assert all(row["branches"] == THREADS * 2 for row in report.rows)

    for name in ("affinity", "affinity, tracer's ids"):
        assert arms[name]["as_on_one"] >= SHARE
        assert arms[name]["missed"] == 0
        assert arms[name]["branch_cached"] == arms["one server"]["branch_cached"]
        assert all(int(n) > 0 for n in arms[name]["requests"].split(" / "))  # both have work
    assert "0" in arms["no header"]["requests"].split(" / ")  # all on one server
    for name in ("tracer's ids only", "round_robin"):
        assert arms[name]["as_on_one"] < SHARE
        assert arms[name]["missed"] > 0
        assert arms[name]["branch_cached"] < arms["affinity"]["branch_cached"]


class Kills(httpx2.AsyncHTTPTransport):
    """Kills the server that has worked once the second answer is here, before anybody reads it."""

    def __init__(self, replicas: Replicas, *, until_noticed: bool) -> None:
        super().__init__()
        self.replicas = replicas
        self.until_noticed = until_noticed
        self.before = self.finished()
        self.answers = 0
        self.killed: LocalServer | None = None

    def done(self) -> list[int]:
        """What each server has finished since the start."""
        return [now - was for now, was in zip(self.finished(), self.before, strict=True)]

    def finished(self) -> list[int]:
        return [fetch_metrics(s.root_url).requests_finished for s in self.replicas.servers]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self.answers += response.is_success
        if self.answers == 2 and self.killed is None:
            body = await response.aread()
            self.kill()
            kind = {"content-type": response.headers["content-type"]}
            return httpx2.Response(200, headers=kind, content=body)
        return response

    def kill(self) -> None:
        until(lambda: sum(self.done()) >= 2)  # a request is counted after its answer is out
        done = self.done()
        assert sorted(done) == [0, 2]
        self.killed = self.replicas.servers[done.index(2)]
        self.killed.kill()
        if self.until_noticed:
            wait_for_healthy(self.replicas, 1)


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "at once"])
async def test_a_replica_that_dies_costs_a_miss_and_nothing_else(
    replicas: Replicas, noticed: bool
) -> None:
    """A branch that leaves before the router has noticed may get an error; its row says so."""
    kills = Kills(replicas, until_noticed=noticed)
    llm = model_at(replicas, transport=kills, max_retries=8)  # the orchestrator's own way through
    affinity = Affinity.for_router("vllm-router")
    # under `gap` a branch leaves after the answer: here to a replica that never saw its trunk
    shadow = Shadow(llm, branches=[user_update()], affinity=affinity, launch="gap", late="deliver")
    tools = ToolNode(TOOLS)

    async def slow(state: MessagesState) -> Any:
        """Slower than the branch: the next request would bring the survivor what it lacks."""
        assert await shadow.drain(timeout=120)
        return await tools.ainvoke(state)

    graph = hand_built(shadow.watch(llm), batches=3, tools_node=slow).compile()
    question: Any = {"messages": [("user", f"How fast do glaciers retreat? ({uuid4()})")]}
    config: Any = {"configurable": {"thread_id": uuid4().hex}}
    modes: Any = ["values", "messages"]
    parts = [part async for part in graph.astream(question, config, stream_mode=modes)]
    final = [state for mode, state in parts if mode == "values"][-1]
    assert await shadow.drain(timeout=120)
    await shadow.aclose()

    assert kills.killed is not None
    assert [m.type for m in final["messages"]].count("ai") == 4  # the run went on to its end
    assert len(shadow.ledger) == 3
    first, *rest = sorted(shadow.ledger, key=lambda row: row.at)
    if noticed or first.verdict != "failed":
        assert first.miss == "wrong replica or evicted", first
        assert "missed (wrong replica or evicted)" in shadow.ledger.summary()
    else:
        assert "answered 50" in first.reason, first  # its request, or its /tokenize
    assert [row.verdict in ("update", "skip") for row in rest] == [True, True], rest
    assert [row.predicted == row.cached for row in rest] == [True, True], rest


async def test_the_router_speaks_of_the_servers(replicas: Replicas) -> None:
    """What the shadow asks besides: tokens, metrics and models all go through the router."""
    async with httpx2.AsyncClient(base_url=replicas.root_url, trust_env=False) as http:
        models = (await http.get("/v1/models")).json()
        body = {"model": replicas.model, "prompt": "ice"}
        tokens = (await http.post("/tokenize", json=body)).json()
    assert models["data"][0]["id"] == "m"
    assert tokens["count"] > 0
    assert fetch_metrics(replicas.root_url).block_size == 32


async def test_the_router_knows_parents_and_children(replicas: Replicas) -> None:
    llm = model_at(replicas)
    affinity = Affinity.for_router("vllm-router", hints=True)
    shadow = Shadow(llm, branches=[user_update()], affinity=affinity, guard="reject")
    graph = hand_built(shadow.watch(llm), batches=2).compile()
    programs: dict[str, dict[str, Any]] = {}
    lengths: set[int | None] = set()  # told for as long as a request runs
    over = asyncio.Event()

    async def look() -> None:
        async with httpx2.AsyncClient(base_url=replicas.root_url, trust_env=False) as http:
            while not over.is_set():
                shown = (await http.get("/scheduling/diagnostics")).json()
                for rank in shown["ranks"]:
                    programs.update({p["program"]: p for p in rank["programs"]})
                    lengths.update(p["expected_output_tokens"] for p in rank["programs"])
                await asyncio.sleep(0)

    async def agent() -> None:
        for thread in ("first", "second", "third"):  # the router is asked beside the first
            config: Any = {"configurable": {"thread_id": thread}}
            question: Any = {"messages": [("user", f"How fast do glaciers retreat? ({thread})")]}
            async for _ in graph.astream(question, config, stream_mode=["messages", "custom"]):
                pass
            await shadow.drain(timeout=120)
        over.set()

    await asyncio.gather(agent(), look())
    await shadow.aclose()
    known = {p["root_program_id"]: p for p in programs.values() if p["agent_role"] != "shadow"}
    children = [p for p in programs.values() if p["agent_role"] == "shadow"]
    assert children
    for child in children:
        parent = known[child["parent_program_id"]]
        assert parent["agent_role"] == "orchestrator"
        assert parent["agent_id"] == "agent"
        assert parent["session_id"] == child["session_id"]
        assert child["blocks_parent"] is child["expected_resume"] is False
        assert child["spawn_reason"] == "user_update"
    assert lengths == {None, user_update().max_tokens}
    assert shadow.ledger.guard == ()
    assert all(row.verdict in ("update", "skip") for row in shadow.ledger), list(shadow.ledger)
    assert all(row.predicted == row.cached for row in shadow.ledger)
