"""Isolation on the real server: five kinds of agents, and everything that can happen to them.

The cases are not the full cross product; together they cover every pair of values
(`test_the_cases_cover_every_pair`).
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, Durability
from openai import DefaultAsyncHttpxClient

from langgraph_shadow import Shadow
from langgraph_shadow.runner.options import Launch
from langgraph_shadow.testing import (
    GhostBranch,
    GhostFound,
    Search,
    Way,
    aassert_no_ghosts,
    assert_no_ghosts,
    ghost_branch,
)
from tests.agents import hit
from tests.conftest import VllmServer
from tests.scripted import BUILD, PARALLEL, Archive, Door, ScriptedChat, Setting, Situation

Saver = Literal["memory", "sqlite"]
Run = Literal["sync", "async"]


@dataclass(frozen=True)
class Case:
    kind: Literal["hand_built", "created", "deep", "supervisor", "swarm"]
    situation: Situation
    run: Run
    saver: Saver
    durability: Durability
    subgraphs: bool
    door: Door
    launch: Launch

    @property
    def ways(self) -> tuple[Way, ...]:
        """Every kind runs in each way at least once; a run of each way takes its time."""
        if self.run == "sync":
            return ("stream", "v3") if self.saver == "memory" else ("stream",)
        return ("stream", "v3") if self.durability == "exit" else ("stream", "events")

    def __str__(self) -> str:
        return "-".join(str(getattr(self, f.name)) for f in fields(self))


CASES = [
    Case("hand_built", "plain", "sync", "memory", "async", False, "attach", "lead"),
    Case("hand_built", "interrupt", "async", "sqlite", "exit", True, "own", "follow"),
    Case("hand_built", "retry", "sync", "sqlite", "sync", True, "attach", "gap"),
    Case("hand_built", "approval", "async", "memory", "sync", False, "own", "gap"),
    Case("created", "plain", "async", "sqlite", "async", True, "own", "lead"),
    Case("created", "interrupt", "sync", "memory", "exit", False, "attach", "follow"),
    Case("created", "retry", "async", "memory", "exit", False, "own", "gap"),
    Case("created", "approval", "sync", "memory", "sync", True, "own", "lead"),
    Case("deep", "plain", "async", "sqlite", "sync", False, "attach", "follow"),
    Case("deep", "interrupt", "sync", "memory", "async", True, "own", "gap"),
    Case("deep", "retry", "async", "memory", "exit", False, "attach", "lead"),
    Case("deep", "approval", "sync", "sqlite", "async", True, "attach", "follow"),
    Case("supervisor", "plain", "async", "sqlite", "exit", False, "own", "gap"),
    Case("supervisor", "interrupt", "sync", "memory", "sync", True, "attach", "lead"),
    Case("supervisor", "retry", "async", "memory", "async", True, "attach", "follow"),
    Case("supervisor", "approval", "sync", "sqlite", "exit", True, "attach", "follow"),
    Case("swarm", "plain", "async", "memory", "sync", False, "attach", "gap"),
    Case("swarm", "interrupt", "sync", "sqlite", "async", True, "own", "lead"),
    Case("swarm", "retry", "async", "memory", "exit", True, "own", "follow"),
    Case("swarm", "approval", "sync", "sqlite", "sync", False, "own", "lead"),
]
SYNC = [case for case in CASES if case.run == "sync"]
ASYNC = [case for case in CASES if case.run == "async"]

BATCHES = {"hand_built": 2, "created": 2, "deep": 4, "supervisor": 4, "swarm": 3}
"""Tool batches in each agent's script, handovers included."""

SEARCHES = {"hand_built": 2, "created": 2, "deep": 3, "supervisor": 2, "swarm": 2}
"""Batches of searches: each is interrupted, or approved, once."""


def test_the_cases_cover_every_pair() -> None:
    assert {(case.kind, way) for case in CASES for way in case.ways} == set(
        itertools.product(BUILD, get_args(Way))
    )
    values = {f.name: {getattr(case, f.name) for case in CASES} for f in fields(Case)}
    assert values["situation"] == set(get_args(Situation))
    assert values["durability"] == set(get_args(Durability))
    assert values["launch"] == set(get_args(Launch))
    assert values["kind"] == set(BUILD)
    for one, other in itertools.combinations(values, 2):
        covered = {(getattr(case, one), getattr(case, other)) for case in CASES}
        assert covered == set(itertools.product(values[one], values[other])), (one, other)


@dataclass
class Stage:
    """A graph with its shadow, and what it is to be asked."""

    case: Case
    graph: Any
    shadow: Shadow
    ghost: GhostBranch
    archive: Archive

    @classmethod
    def set_up(cls, case: Case, server: VllmServer, saver: Any) -> Stage:
        llm = ScriptedChat(
            base_url=server.base_url,
            model=server.model,
            api_key="x",
            temperature=0,
            stream_usage=True,
            use_responses_api=False,
            http_async_client=DefaultAsyncHttpxClient(),
        )
        archive, ghost = Archive(case.situation), ghost_branch()
        shadow = Shadow(
            llm, branches=[ghost], guard="reject", launch=case.launch, on_event=archive.hear
        )
        graph = BUILD[case.kind](Setting(llm, shadow, archive, saver, case.door))
        return cls(case, graph, shadow, ghost, archive)

    def arguments(self) -> dict[str, Any]:
        return {
            "inputs": {"messages": [("user", f"How fast do glaciers retreat? ({uuid4()})")]},
            "shadow": self.shadow,
            "then": self.resumes(),
            "ways": self.case.ways,
            "subgraphs": self.case.subgraphs,
            "durability": self.case.durability,
        }

    def resumes(self) -> list[Any]:
        answer: dict[str, Any] = {
            "interrupt": Command(resume="yes"),
            "approval": Command(resume={"decisions": [{"type": "approve"}] * PARALLEL}),
        }
        if self.case.situation not in answer:
            return []
        static = self.case.kind == "hand_built" and self.case.situation == "approval"
        return [None if static else answer[self.case.situation]] * SEARCHES[self.case.kind]

    def check(self, search: Search) -> None:
        """Each batch fired once on each thread, was answered, and hit the cache as predicted."""
        rows = self.shadow.ledger.rows
        assert search.ghosts == (self.ghost.prompt_mark, self.ghost.answer_mark)
        assert self.shadow.ledger.guard == ()
        assert len(search.threads) == len(self.case.ways)
        for thread in search.threads:
            own = [row for row in rows if row.thread == thread]
            assert len(own) == BATCHES[self.case.kind], [row.tool_call_ids for row in own]
            assert len({row.tool_call_ids for row in own}) == len(own)
            assert {row.text for row in own} == {self.ghost.answer}
            assert any(row.delivered for row in own), "no branch spoke while the graph ran"
        assert self.archive.found <= {i for row in rows for i in row.tool_call_ids}
        assert len(self.archive.found) == (
            SEARCHES[self.case.kind] * PARALLEL * len(search.threads)
        )
        for row in rows:
            if row.thread != search.threads[0]:  # the same question is in the cache by then
                continue
            assert row.predicted is not None
            assert row.cached is not None
            if self.case.launch == "lead":  # a race with the orchestrator's next request
                assert row.cached > 0
            else:
                assert hit(row), row
                assert row.cached > 0
        self.check_places(search)

    def check_places(self, search: Search) -> None:
        for mode in ("values", "updates", "messages", "tasks", "debug", "checkpoints"):
            assert any(place.startswith(f"stream {mode}") for place in search.places), mode
        kept = ("storage", "writes", "blobs")
        rows = [f"saver {name}" for name in kept]
        if self.case.saver == "sqlite":
            rows = ["saver table checkpoints", "saver table writes"]
        assert {"state", "checkpoints", "checkpoint", "pending write", *rows} <= set(search.places)
        assert any(place.startswith("trace LangGraph > ") for place in search.places)
        if "v3" in self.case.ways:
            assert {"v3 values", "v3 messages"} <= set(search.places)
        if "events" in self.case.ways:
            assert any(place.startswith("astream_events ") for place in search.places)
        deeper = any(place.startswith("stream values of ") for place in search.places)
        nested = self.case.kind in ("deep", "supervisor", "swarm")
        assert deeper is (nested and self.case.subgraphs)


@contextmanager
def saver_of(case: Case, folder: Path) -> Iterator[Any]:
    if case.saver == "memory":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(str(folder / "kept.sqlite")) as saver:
        yield saver


@asynccontextmanager
async def async_saver_of(case: Case, folder: Path) -> AsyncIterator[Any]:
    if case.saver == "memory":
        yield InMemorySaver()
        return
    async with AsyncSqliteSaver.from_conn_string(str(folder / "kept.sqlite")) as saver:
        yield saver


@pytest.mark.parametrize("case", SYNC, ids=str)
def test_no_ghosts(case: Case, vllm_server: VllmServer, tmp_path: Path) -> None:
    with saver_of(case, tmp_path) as saver:
        stage = Stage.set_up(case, vllm_server, saver)
        stage.check(assert_no_ghosts(stage.graph, **stage.arguments()))


@pytest.mark.parametrize("case", ASYNC, ids=str)
async def test_no_ghosts_async(case: Case, vllm_server: VllmServer, tmp_path: Path) -> None:
    async with async_saver_of(case, tmp_path) as saver:
        stage = Stage.set_up(case, vllm_server, saver)
        stage.check(await aassert_no_ghosts(stage.graph, **stage.arguments()))


@pytest.mark.parametrize("case", [SYNC[0], ASYNC[0]], ids=str)
async def test_a_tool_that_repeats_a_verdict_is_caught(case: Case, vllm_server: VllmServer) -> None:
    stage = Stage.set_up(case, vllm_server, InMemorySaver())
    stage.archive.repeats = True
    arguments = {**stage.arguments(), "ways": ["stream"]}
    with pytest.raises(GhostFound) as caught:
        await aassert_no_ghosts(stage.graph, **arguments)
    assert {g.text for g in caught.value.ghosts} == {stage.ghost.answer_mark}
    assert {"stream updates", "stream values", "state", "checkpoint"} <= set(caught.value.places)
