"""The real vllm-router's program scheduling, before a server that is none: who is whose child."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import httpx2
import pytest
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient

from langgraph_shadow import Affinity
from langgraph_shadow.server.router import RouterProcess
from tests.agents import hand_built
from tests.faults.harness import BRANCH
from tests.faults.server import MODEL, FaultServer
from tests.routers import HashRouter
from tests.unit.test_affinity_requests import run, shadow_of

pytestmark = pytest.mark.skipif(
    find_spec("vllm_router") is None, reason="vllm-router is not installed (make install)"
)
BATCHES = 2


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[RouterProcess]:
    monkeypatch.setenv("LANGGRAPH_SHADOW_CACHE", str(tmp_path))
    with FaultServer() as server, HashRouter([server.port]) as front:
        worker = front.base_url.removesuffix("/v1")
        flags = ["--worker-urls", worker, "--enable-program-scheduling"]
        with RouterProcess(flags) as running:
            yield running


async def test_branches_are_children_of_their_orchestrator(router: RouterProcess) -> None:
    llm = ChatOpenAI(
        base_url=router.base_url,
        model=MODEL,
        api_key="x",
        temperature=0,
        use_responses_api=False,
        http_async_client=DefaultAsyncHttpxClient(),
    )
    affinity = Affinity.for_router("vllm-router", hints=True)
    shadow = shadow_of(llm, affinity=affinity, guard="reject")
    graph = hand_built(shadow.watch(llm), batches=BATCHES).compile()
    programs: dict[str, dict[str, Any]] = {}
    lengths: set[int | None] = set()  # told for as long as a request runs
    over = asyncio.Event()

    async def look() -> None:
        async with httpx2.AsyncClient(base_url=router.root_url, trust_env=False) as http:
            while not over.is_set():
                shown = (await http.get("/scheduling/diagnostics")).json()
                for rank in shown["ranks"]:
                    programs.update({p["program"]: p for p in rank["programs"]})
                    lengths.update(p["expected_output_tokens"] for p in rank["programs"])

    async def agents() -> None:
        for thread in ("first", "second", "third"):  # the router is asked beside the first
            await run(graph, thread)
            assert await shadow.drain(timeout=60)
        over.set()

    await asyncio.gather(agents(), look())
    await shadow.aclose()
    parents = {p["root_program_id"]: p for p in programs.values() if not p["parent_program_id"]}
    children = [p for p in programs.values() if p["parent_program_id"]]
    assert len(parents) >= 2
    assert children
    for child in children:
        parent = parents[child["parent_program_id"]]
        assert (parent["agent_role"], parent["agent_id"]) == ("orchestrator", "agent")
        assert (child["agent_role"], child["spawn_reason"]) == ("shadow", BRANCH.name)
        assert child["session_id"] == parent["session_id"]
        assert child["blocks_parent"] is child["expected_resume"] is False
    assert lengths == {None, BRANCH.max_tokens}
    assert shadow.ledger.guard == ()
    assert len(shadow.ledger) == 3 * BATCHES
    assert all(row.predicted == row.cached for row in shadow.ledger)
