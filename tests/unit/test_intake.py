"""Each complete tool batch is fired exactly once, in call order."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI

from langgraph_shadow.hosts import Hosts
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.intake import Intake
from langgraph_shadow.runner.lines import Call
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey

LLM = ChatOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", model="m", use_responses_api=False)
KEY = TrunkKey("thread", "", "agent")
HOSTS = Hosts()


def assistant(ids: list[str]) -> AIMessage:
    calls = [{"name": "f", "args": {}, "id": i, "type": "tool_call"} for i in ids]
    return AIMessage("", tool_calls=calls, id="-".join(ids))


def wire_assistant(ids: list[str]) -> Message:
    calls = [{"id": i, "type": "function", "function": {"name": "f"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": f"result of {call_id}"}


class Agent:
    """An orchestrator as the adapters show it."""

    def __init__(self) -> None:
        self.intake = Intake(LLM, max_lines=8)
        self.messages: list[Message] = [{"role": "user", "content": "q"}]
        self.fired: list[Batch] = []

    def asks(self) -> UUID:
        """A model call begins; the callback trigger sees it."""
        run = uuid4()
        call = Call(
            run_id=run,
            trunk=Trunk.build(key=KEY, model="m", messages=self.messages),
            origin="",
            route=Route(),
            root=None,
            step=None,
            target=None,
            streams=False,
        )
        self._took(self.intake.started(call, HOSTS.current(), []))
        return run

    def answers(self, run: UUID, ids: list[str]) -> None:
        self.intake.ended(run, assistant(ids))
        self.messages.append(wire_assistant(ids))

    def tools_finish(self, ids: list[str], *, node: bool, order: list[str] | None = None) -> None:
        """The results come, one by one in `order`; with `node` the node trigger sees them."""
        if node:
            for i in order or ids:
                self.results({i: result(i)})
        self.messages += [result(i) for i in ids]

    def results(self, results: dict[str, Message], state: AIMessage | None = None) -> None:
        batch = self.intake.results(
            "thread", "", results, assistant=state, host=HOSTS.current(), target=None
        )
        self._took(batch)

    def _took(self, batch: Batch | None) -> None:
        if batch is not None:
            self.fired.append(batch)


@given(
    batches=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    node=st.booleans(),
    retries=st.integers(0, 2),
    seed=st.integers(0, 99),
    same_ids=st.booleans(),
)
def test_once_per_batch_whatever_triggers_and_retries(
    batches: list[int], node: bool, retries: int, seed: int, same_ids: bool
) -> None:
    agent = Agent()
    for number, size in enumerate(batches):
        ids = [f"call_{'' if same_ids else number}_{i}" for i in range(size)]
        agent.answers(agent.asks(), ids)
        order = list(ids)
        random.Random(seed).shuffle(order)
        agent.tools_finish(ids, node=node, order=order)
        for _ in range(retries):  # the tools node runs again, the model call is made again
            if node:
                agent.results({i: result(i) for i in ids})
            agent.intake.ended(agent.asks(), None)
        for batch in agent.fired:
            batch.launched = True
    agent.asks()
    assert len(agent.fired) == len(batches)
    for batch, size in zip(agent.fired, batches, strict=True):
        assert len(batch.tools.call_ids) == size
        answered = [m["tool_call_id"] for m in batch.trunk.messages if m["role"] == "tool"]
        assert tuple(answered[-size:]) == batch.tools.call_ids


def test_the_predicted_trunk_is_confirmed_by_the_next_request() -> None:
    agent = Agent()
    agent.answers(agent.asks(), ["a", "b"])
    agent.tools_finish(["a", "b"], node=True, order=["b", "a"])
    (batch,) = agent.fired
    assert not batch.trunk.exact
    # langchain-openai writes what a wire fixture leaves out, so take the predicted messages
    agent.messages = list(batch.trunk.messages)
    agent.asks()
    assert batch.trunk.exact
    assert batch.predicted_right is True
    assert len(agent.fired) == 1


def test_an_incomplete_batch_waits() -> None:
    agent = Agent()
    agent.answers(agent.asks(), ["a", "b"])
    agent.results({"b": result("b")})
    assert agent.fired == []
    assert agent.intake.ready_ahead("thread", "", ["b"]) is None
    agent.results({"a": result("a")})
    assert len(agent.fired) == 1


def test_ahead_goes_in_call_order_and_once() -> None:
    agent = Agent()
    agent.answers(agent.asks(), ["a", "b", "c"])
    agent.results({"b": result("b")})
    assert agent.intake.ready_ahead("thread", "", ["b"]) is None
    agent.results({"a": result("a")})
    ready = agent.intake.ready_ahead("thread", "", ["a"])
    assert ready is not None
    contents = [m["content"] for m in ready[0].messages if m["role"] == "tool"]
    assert contents == ["result of a", "result of b"]
    assert agent.intake.ready_ahead("thread", "", ["a"]) is None


def test_a_graph_that_makes_its_own_assistant_message() -> None:
    """Constrained decoding returns text; the graph makes the tool call out of it."""
    agent = Agent()
    agent.intake.ended(agent.asks(), AIMessage("search"))
    agent.results({"x": result("x")}, state=assistant(["x"]))
    (batch,) = agent.fired
    assert batch.tools.call_ids == ("x",)
    assert batch.trunk.messages[-2]["tool_calls"][0]["id"] == "x"


@pytest.mark.parametrize("seen", [True, False])
def test_a_run_that_ends_releases_its_batches(seen: bool) -> None:
    agent = Agent()
    agent.answers(agent.asks(), ["a"])
    agent.tools_finish(["a"], node=True)
    (batch,) = agent.fired
    root = batch.root = uuid4()
    if seen:
        agent.asks()
    agent.intake.run_over(root, failed=True)
    assert batch.run_over.at is not None
    assert batch.abandoned is not seen


def test_old_lines_fall_out() -> None:
    intake = Intake(LLM, max_lines=2)
    lines: list[Any] = [intake.line(str(i), "") for i in range(5)]
    assert len(intake._lines) == 2
    assert intake.line("4", "") is lines[4]
