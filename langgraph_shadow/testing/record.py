"""What a run shows: its streams, its events, its trace, and what its checkpointer keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.tracers.base import BaseTracer
from langgraph.checkpoint.memory import InMemorySaver

if TYPE_CHECKING:
    from langchain_core.tracers.schemas import Run

_TABLES = ("checkpoints", "writes")


class Trace(BaseTracer):
    """Keeps every run of the trace that a graph's callbacks write.

    Also those that begin after their root has ended, which other tracers lose
    (facts/langgraph.md §5).
    """

    def __init__(self) -> None:
        super().__init__(_schema_format="original+chat")
        self.runs: dict[UUID, Run] = {}

    def _persist_run(self, run: Run) -> None:
        """Nothing: the runs are kept from their beginning on."""

    def _on_run_create(self, run: Run) -> None:
        self.runs[run.id] = run

    def shown(self) -> Iterator[tuple[str, Any]]:
        """Each run's content, with its way down from the root as its place."""
        for run in tuple(self.runs.values()):
            tokens = "".join(str(e["kwargs"].get("token", "")) for e in _token_events(run))
            parts = {
                "name": run.name,
                "inputs": run.inputs,
                "outputs": run.outputs,
                "error": run.error,
                "tags": run.tags,
                "extra": run.extra,
                "events": run.events,
                "tokens": tokens,
            }
            yield f"trace {self._way_to(run)}", parts

    def _way_to(self, run: Run) -> str:
        names = [run.name]
        parent = self.runs.get(run.parent_run_id) if run.parent_run_id else None
        while parent is not None:
            names.append(parent.name)
            parent = self.runs.get(parent.parent_run_id) if parent.parent_run_id else None
        return " > ".join(reversed(names))


class Recording:
    """Everything that one run showed; streamed pieces are also joined to whole messages."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._shown: list[tuple[str, Any]] = []
        self._pieces: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def show(self, place: str, value: Any) -> None:
        """Keep a value that appeared at a place."""
        self._shown.append((place, value))

    def stream(self, chunk: tuple[Any, ...]) -> None:
        """Keep a chunk of `stream`; `custom` is where shadow text belongs."""
        mode, data = chunk[-2:]
        namespace = "|".join(chunk[0]) if len(chunk) > 2 else ""
        place = f"stream {mode} of {namespace}" if namespace else f"stream {mode}"
        if mode == "custom":
            return
        self.show(place, data)
        if mode == "messages":
            self._piece(place, data[0].id, data[0])

    def event(self, event: Mapping[str, Any]) -> None:
        """Keep an event of `astream_events` v2."""
        place = f"astream_events {event['event']} of {event['name']}"
        self.show(place, event)
        if event["event"] == "on_chat_model_stream":
            self._piece(place, event["run_id"], event["data"]["chunk"])

    def protocol(self, event: Mapping[str, Any]) -> None:
        """Keep an event of the v3 protocol; `custom` is where shadow text belongs."""
        method, data = event["method"], event["params"]["data"]
        if method.partition(":")[0] == "custom":
            return
        self.show(f"v3 {method}", event["params"])
        if method == "messages" and isinstance(data[0], Mapping) and "delta" in data[0]:
            delta = data[0]["delta"]
            text = "".join(str(delta.get(part) or "") for part in ("text", "reasoning", "args"))
            self._pieces[f"v3 {method}", str(data[1].get("run_id"))].append(text)

    def shown(self) -> Iterator[tuple[str, Any]]:
        """Everything kept, as place and value."""
        yield from self._shown
        for (place, _), pieces in self._pieces.items():
            yield place, "".join(pieces)
        yield from self.trace.shown()

    def _piece(self, place: str, key: object, message: Any) -> None:
        calls = getattr(message, "tool_call_chunks", None) or ()
        text = str(message.text) + "".join(call.get("args") or "" for call in calls)
        self._pieces[place, str(key)].append(text)


def raw_rows(saver: Any) -> Iterator[tuple[str, Any]]:
    """What a checkpointer really keeps, as place and value, where we know how to look."""
    if isinstance(saver, InMemorySaver):
        for name in ("storage", "writes", "blobs"):
            yield f"saver {name}", dict(getattr(saver, name))
    elif _is_sqlite(saver, "SqliteSaver"):
        for table in _TABLES:
            with saver.cursor(transaction=False) as cursor:
                yield f"saver table {table}", cursor.execute(f"SELECT * FROM {table}").fetchall()


async def araw_rows(saver: Any) -> AsyncIterator[tuple[str, Any]]:
    """The same for asynchronous checkpointers too."""
    if _is_sqlite(saver, "AsyncSqliteSaver"):
        for table in _TABLES:
            async with saver.conn.execute(f"SELECT * FROM {table}") as cursor:
                yield f"saver table {table}", list(await cursor.fetchall())
        return
    for place, rows in raw_rows(saver):
        yield place, rows


def _is_sqlite(saver: Any, name: str) -> bool:
    """By name: langgraph-checkpoint-sqlite need not be installed."""
    return any(
        cls.__name__ == name and cls.__module__.startswith("langgraph.checkpoint.sqlite")
        for cls in type(saver).__mro__
    )


def _token_events(run: Run) -> list[dict[str, Any]]:
    return [e for e in run.events or () if e.get("name") == "new_token"]
