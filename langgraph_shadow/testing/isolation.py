"""`assert_no_ghosts`: run a graph, then look for shadow text everywhere it must not be."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.stream import CustomTransformer
from langgraph.types import Durability, StreamMode

from langgraph_shadow.shadow import Shadow
from langgraph_shadow.testing.ghosts import GhostBranch
from langgraph_shadow.testing.record import Recording, araw_rows, raw_rows
from langgraph_shadow.testing.search import GhostFound, Wanted

if TYPE_CHECKING:
    from langgraph_shadow.delivery.ledger import LedgerRow

STREAM_MODES: tuple[StreamMode, ...] = (
    "values",
    "updates",
    "messages",
    "tasks",
    "debug",
    "checkpoints",
    "custom",
)

Way = Literal["stream", "events", "v3"]
"""A way to run a graph: `stream` with every mode at once, `astream_events` v2, or its v3."""


@dataclass(frozen=True, slots=True)
class Search:
    """What was searched, when nothing was found.

    Attributes:
        ghosts: The shadow texts that were looked for.
        places: How many things were searched at each place.
        threads: The thread of each run, in the order of the ways.
    """

    ghosts: tuple[str, ...]
    places: Mapping[str, int]
    threads: tuple[str, ...]


def assert_no_ghosts(
    graph: Any,
    inputs: Any,
    *,
    shadow: Shadow | None = None,
    ghosts: Iterable[str] = (),
    own: Iterable[str] = (),
    then: Sequence[Any] = (),
    config: RunnableConfig | None = None,
    ways: Sequence[Way] = ("stream", "v3"),
    stream_modes: Sequence[StreamMode] = STREAM_MODES,
    subgraphs: bool = True,
    durability: Durability | None = None,
    timeout: float = 60.0,
) -> Search:
    """Run a graph and assert that shadow text appears nowhere but in `custom` events.

    Searched are the state, every checkpoint and pending write, the checkpointer's raw rows
    (in-memory and SQLite), every stream mode, the v3 channels and the run's trace;
    `aassert_no_ghosts` adds `astream_events` v2.

    Args:
        graph: A compiled graph, with its shadow.
        inputs: What it is run on.
        shadow: The graph's shadow. Its instructions and this run's answers are looked for; a
            branch made by `ghost_branch` is looked for by its marks. That its branches really ran
            is asserted too.
        ghosts: More texts to look for; needed when no shadow is given.
        own: Texts that the agent may hold by itself: what its model and tools really said.
        then: Further inputs on the same thread, one after the other: the next question, or a
            `Command(resume=…)`.
        config: The run's config. Each way runs on a thread of its own, `<thread_id>/<way>`.
        ways: How to run it, each once.
        stream_modes: The modes of the way `stream`.
        subgraphs: Whether the way `stream` shows subgraphs.
        durability: When checkpoints are written; LangGraph's default when None.
        timeout: Seconds to wait for the last branches of each run.

    Returns:
        What was searched.

    Raises:
        GhostFound: Shadow text was found; the error names the places.
        AssertionError: No branch ran to an answer, so nothing was proved.
        ValueError: Nothing to look for, or a way that only `aassert_no_ghosts` has.
    """
    hunt = _Hunt(graph, shadow, ghosts, own, config)
    options = _options(durability)
    for way in ways:
        if way == "events":
            msg = "astream_events v2 is asynchronous only: use aassert_no_ghosts for this way"
            raise ValueError(msg)
        record, run = hunt.begin(way)
        for given in (inputs, *then):
            if way == "stream":
                modes = list(stream_modes)
                for chunk in graph.stream(
                    given, run, stream_mode=modes, subgraphs=subgraphs, **options
                ):
                    record.stream(chunk)
            else:
                with _experimental():
                    started = graph.stream_events(given, run, **_V3, **options)
                with started as events:
                    messages = iter(events.messages)
                    for event in events:
                        record.protocol(event)
                    for message in messages:
                        record.show("v3 messages", message.output)
        if shadow is not None:
            hunt.drained(shadow.drain_sync(timeout=timeout), timeout)
        if hunt.saver is not None:
            record.show("state", graph.get_state(run, subgraphs=True))
            record.show("checkpoints", list(graph.get_state_history(run)))
            for kept in hunt.saver.list(hunt.thread_of(run)):
                _show_checkpoint(record, kept)
            for place, rows in raw_rows(hunt.saver):
                record.show(place, rows)
    return hunt.result()


async def aassert_no_ghosts(
    graph: Any,
    inputs: Any,
    *,
    shadow: Shadow | None = None,
    ghosts: Iterable[str] = (),
    own: Iterable[str] = (),
    then: Sequence[Any] = (),
    config: RunnableConfig | None = None,
    ways: Sequence[Way] = ("stream", "events", "v3"),
    stream_modes: Sequence[StreamMode] = STREAM_MODES,
    subgraphs: bool = True,
    durability: Durability | None = None,
    timeout: float = 60.0,
) -> Search:
    """The same for an asynchronous graph, `astream_events` v2 included; see `assert_no_ghosts`."""
    hunt = _Hunt(graph, shadow, ghosts, own, config)
    options = _options(durability)
    for way in ways:
        record, run = hunt.begin(way)
        for given in (inputs, *then):
            if way == "stream":
                modes = list(stream_modes)
                async for chunk in graph.astream(
                    given, run, stream_mode=modes, subgraphs=subgraphs, **options
                ):
                    record.stream(chunk)
            elif way == "events":
                async for event in graph.astream_events(given, run, version="v2", **options):
                    record.event(event)
            else:
                with _experimental():
                    started = await graph.astream_events(given, run, **_V3, **options)
                async with started as events:
                    messages = aiter(events.messages)
                    async for event in events:
                        record.protocol(event)
                    async for message in messages:
                        record.show("v3 messages", await message.output)
        if shadow is not None:
            hunt.drained(await shadow.drain(timeout=timeout), timeout)
        if hunt.saver is not None:
            record.show("state", await graph.aget_state(run, subgraphs=True))
            record.show("checkpoints", [s async for s in graph.aget_state_history(run)])
            async for kept in hunt.saver.alist(hunt.thread_of(run)):
                _show_checkpoint(record, kept)
            async for place, rows in araw_rows(hunt.saver):
                record.show(place, rows)
    return hunt.result()


_V3: dict[str, Any] = {"version": "v3", "transformers": [CustomTransformer]}


class _Hunt:
    """What both variants share: the runs, what they showed, and the verdict on it."""

    def __init__(
        self,
        graph: Any,
        shadow: Shadow | None,
        ghosts: Iterable[str],
        own: Iterable[str],
        config: RunnableConfig | None,
    ) -> None:
        self.saver = graph.checkpointer if hasattr(graph.checkpointer, "list") else None
        self._shadow = shadow
        self._ghosts = tuple(ghosts)
        self._own = tuple(own)
        self._config = config
        self._thread = (config or {}).get("configurable", {}).get("thread_id") or uuid4()
        self._records: dict[str, Recording] = {}
        if shadow is None and not any(text.strip() for text in self._ghosts):
            msg = "nothing to look for: pass the graph's shadow, or the texts as ghosts=[…]"
            raise ValueError(msg)

    def begin(self, way: Way) -> tuple[Recording, RunnableConfig]:
        thread = f"{self._thread}/{way}"
        record = self._records[thread] = Recording()
        own: RunnableConfig = {
            "configurable": {"thread_id": thread},
            "callbacks": [record.trace],
        }
        return record, merge_configs(self._config, own)

    @staticmethod
    def thread_of(run: RunnableConfig) -> RunnableConfig:
        """Without a namespace a checkpointer lists those of the subgraphs too."""
        return {"configurable": {"thread_id": run["configurable"]["thread_id"]}}

    @staticmethod
    def drained(done: bool, timeout: float) -> None:
        if not done:
            msg = f"branches were still running after {timeout:g} s: raise `timeout`"
            raise AssertionError(msg)

    def result(self) -> Search:
        wanted = Wanted([*self._ghosts, *self._shadow_texts()], own=self._own)
        shown = [item for record in self._records.values() for item in record.shown()]
        found = [g for place, value in shown for g in wanted.found_in(value, place=place)]
        if found:
            raise GhostFound(found)
        places = Counter(place for place, _ in shown)
        return Search(wanted.ghosts, dict(places), tuple(self._records))

    def _shadow_texts(self) -> list[str]:
        if self._shadow is None:
            return []
        texts: list[str] = []
        for branch in self._shadow.branches:
            if isinstance(branch, GhostBranch):
                texts += [branch.prompt_mark, branch.answer_mark]
            else:
                texts.append(branch.instruction)
                texts += [row.text for row in self._rows() if row.branch == branch.name]
        self._assert_branches_ran()
        return texts

    def _rows(self) -> list[LedgerRow]:
        rows = self._shadow.ledger.rows if self._shadow is not None else ()
        return [row for row in rows if row.thread in self._records]

    def _assert_branches_ran(self) -> None:
        """A search for what was never said proves nothing."""
        rows = self._rows()
        silent = sorted(set(self._records) - {r.thread for r in rows})
        unanswered = [r for r in rows if r.verdict in ("failed", "shed")]
        if silent:
            msg = f"nothing was proved: no branch ran on thread {silent[0]!r}"
            raise AssertionError(msg)
        if unanswered:
            row = unanswered[0]
            msg = f"nothing was proved: branch {row.branch!r} {row.verdict}: {row.reason}"
            raise AssertionError(msg)


@contextmanager
def _experimental() -> Iterator[None]:
    """Without LangGraph's warning that v3 may change: a user's tests may make warnings errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The v3 streaming protocol")
        yield


def _options(durability: Durability | None) -> dict[str, Any]:
    return {} if durability is None else {"durability": durability}


def _show_checkpoint(record: Recording, kept: Any) -> None:
    record.show("checkpoint", (kept.config, kept.checkpoint, kept.metadata))
    record.show("pending write", kept.pending_writes or ())
