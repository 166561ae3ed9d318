"""What a router's scheduler is told, and that nothing of it reaches the prompt or the guard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from langgraph_shadow import Affinity, Shadow, user_update
from langgraph_shadow.delivery.calls import CallRow
from langgraph_shadow.delivery.return_clock import ReturnClock
from langgraph_shadow.runner.affinity import HintStyle
from langgraph_shadow.runner.hints import Hints
from langgraph_shadow.trunk.model import PROMPT_FIELDS, TrunkKey
from tests.faults.server import FaultServer
from tests.routers import HashRouter
from tests.unit.test_affinity_requests import branches, by_watch, model, run, shadow_of

AFFINITY = Affinity.for_router("vllm-router", hints=True)
TOP = TrunkKey("t", "", "agent")


class Listening:
    """A router that schedules programs, or does not."""

    def __init__(self, *, enabled: bool) -> None:
        self.engine = self
        self.enabled = enabled

    async def get(self, _path: str) -> dict[str, Any]:
        return {"enabled": True} if self.enabled else {}


async def listening(
    returns: ReturnClock | None = None, *, enabled: bool = True, affinity: Affinity = AFFINITY
) -> Hints:
    hints = Hints(affinity, returns or ReturnClock())
    assert hints.to_ask is (affinity.hints == "agentic_context")
    assert not hints.to_ask
    await hints.find_out(Listening(enabled=enabled))  # type: ignore[arg-type]
    return hints


def context(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fields["vllm_xargs"]["agentic_context"])
    return found


def gaps(count: int, seconds: float) -> ReturnClock:
    clock = ReturnClock()
    for number in range(count + 1):
        start = number * (1 + seconds)
        clock.saw(CallRow("t", "", "agent", start, None, start + 1, ("search",)))
    return clock


async def test_a_branch_is_a_child_that_nobody_waits_for() -> None:
    hints = await listening()
    parent = context(hints.orchestrator(TOP, resumes=True))
    child = context(hints.branch(TOP, user_update(), seconds=60))
    assert parent["root_program_id"] == parent["program_id"]
    assert "parent_program_id" not in parent
    assert parent["expected_resume"] is True
    assert parent["agent_role"] == "orchestrator"
    assert child["parent_program_id"] == child["root_program_id"] == parent["program_id"]
    assert child["program_id"] != parent["program_id"]
    assert child["session_id"] == parent["session_id"] == AFFINITY.session("t")
    assert child["blocks_parent"] is child["expected_resume"] is False
    assert child["expected_output_length"] == user_update().max_tokens
    assert child["deadline_seconds"] == 60
    assert child["priority"] < parent["priority"]


async def test_an_agent_in_a_namespace_is_a_child_that_is_waited_for() -> None:
    hints = await listening()
    top = context(hints.orchestrator(TOP, resumes=True))
    inner = TrunkKey("t", "reader:1|inner:2", "model")
    child = context(hints.orchestrator(inner, resumes=True))
    assert child["parent_program_id"] == child["root_program_id"] == top["program_id"]
    assert "blocks_parent" not in child
    branch = context(hints.branch(inner, user_update(), seconds=1))
    assert branch["parent_program_id"] == child["program_id"]
    assert branch["root_program_id"] == top["program_id"]
    other = context(hints.orchestrator(TrunkKey("u", "", "agent"), resumes=True))
    assert other["root_program_id"] == other["program_id"] != top["program_id"]


async def test_the_retention_is_what_the_tools_took() -> None:
    for count, seconds in ((7, None), (8, 2.1)):
        fields = context((await listening(gaps(count, 2.0))).orchestrator(TOP, resumes=True))
        assert fields.get("kv_retention_ttl_seconds") == (seconds and pytest.approx(2.1))
    hints = await listening(gaps(20, 2.0))
    assert "kv_retention_ttl_seconds" not in context(hints.orchestrator(TOP, resumes=False))
    assert "kv_retention_ttl_seconds" not in context(hints.branch(TOP, user_update(), seconds=1))


@pytest.mark.parametrize("style", ["agentic_context", None])
async def test_nothing_is_said_to_a_router_that_does_not_listen(style: HintStyle | None) -> None:
    hints = await listening(enabled=False, affinity=Affinity(hints=style))
    assert hints.orchestrator(TOP, resumes=True) == {}
    assert hints.branch(TOP, user_update(), seconds=1) == {}


async def test_dynamo_is_told_how_long_a_branch_answers() -> None:
    affinity = Affinity.for_router("dynamo", hints=True)
    hints = await listening(enabled=False, affinity=affinity)
    osl = user_update().max_tokens
    hints = Hints(affinity, ReturnClock())
    assert hints.orchestrator(TOP, resumes=True) == {}
    assert hints.branch(TOP, user_update(), seconds=1) == {"nvext": {"agent_hints": {"osl": osl}}}


def test_a_router_that_takes_no_hints_is_named() -> None:
    with pytest.raises(ValueError, match="llm-d takes no hints; vllm-router and dynamo do"):
        Affinity.for_router("llm-d", hints=True)


class SchedulingRouter(HashRouter):
    """A router that says it schedules programs."""

    diagnostics = b'{"enabled": true}'


@pytest.fixture
def router() -> Iterator[HashRouter]:
    with (
        FaultServer() as one,
        FaultServer() as two,
        SchedulingRouter([one.port, two.port]) as running,
    ):
        yield running


async def test_requests_carry_it_and_the_guard_finds_nothing(router: HashRouter) -> None:
    llm = model(router)
    shadow: Shadow = shadow_of(llm, affinity=AFFINITY, guard="reject")
    graph = by_watch(llm, shadow)
    await run(graph, "first")  # the router is asked meanwhile
    await shadow.drain(timeout=60)
    router.requests.clear()
    for thread in ("one", "two"):
        await run(graph, thread)
    assert await shadow.drain(timeout=60)

    orchestrator, ours = branches(router)
    assert len(ours) == 4
    parents = [context(r.body) for r in orchestrator]
    assert {p["agent_role"] for p in parents} == {"orchestrator"}
    # the last call of a run has no tools to choose from, so nothing is to be expected of it
    assert [p["expected_resume"] for p in parents] == [True, True, False] * 2
    for request in ours:
        child = context(request.body)
        assert child["agent_role"] == "shadow"
        assert child["parent_program_id"] in {p["program_id"] for p in parents}
        assert child["session_id"] == request.headers["x-session-id"]
        assert request.body["priority"] > 0 > child["priority"]  # the two count the other way round
    assert "vllm_xargs" not in PROMPT_FIELDS
    assert shadow.ledger.guard == ()
    assert all(row.predicted == row.cached for row in shadow.ledger)


async def test_a_users_own_xargs_stay(router: HashRouter) -> None:
    llm = model(router, extra_body={"vllm_xargs": {"mine": 1}})
    shadow: Shadow = shadow_of(llm, affinity=AFFINITY)
    graph = shadow.watch(llm)
    await graph.ainvoke("hello")
    await shadow.drain(timeout=60)
    await graph.ainvoke("hello again")
    sent = branches(router)[0][-1].body["vllm_xargs"]
    assert sent["mine"] == 1
    assert "agentic_context" in sent
