"""Traces of branches: each one a root of its own, linked by metadata to what caused it.

Nothing here writes to the orchestrator's tree. A branch often ends after that tree has, and a
child that outlives its parent is shown wrongly or lost (facts/langgraph.md §5).
"""

from __future__ import annotations

import contextvars
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.utils.uuid import uuid7

from langgraph_shadow.branches.branch import Branch
from langgraph_shadow.delivery.ledger import LedgerRow
from langgraph_shadow.delivery.tracers import (
    Account,
    End,
    LangSmith,
    OpenTelemetry,
    Tracer,
    langchain_tracer,
)
from langgraph_shadow.trunk.model import Trunk

log = logging.getLogger("langgraph_shadow.delivery")

_COLUMNS = (
    "branch",
    "namespace",
    "mode",
    "launch",
    "exact",
    "carrier",
    "kept",
    "prompt_tokens",
    "predicted",
    "cached",
    "generated",
    "ttft_ms",
    "lag_ms",
    "verdict",
    "delivered",
    "late",
)
"""Columns of the ledger that the metadata repeats, under the ledger's names."""

_THREAD_KEYS = ("thread_id", "session_id", "conversation_id")
"""Metadata by which LangSmith groups root runs into a thread."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The orchestrator's model call that asked for a tool batch.

    Attributes:
        run_id: Its run id.
        trace_id: The id of its tree's root run.
        thread: What its metadata says about the thread, in LangSmith's keys.
    """

    run_id: UUID
    trace_id: UUID
    thread: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BranchTrace:
    """A branch's own root run, open until its verdict."""

    run_id: UUID
    _traces: Traces
    _ends: tuple[End, ...]
    _model: str
    _inputs: Mapping[str, Any]
    _links: Mapping[str, Any]

    def end(self, row: LedgerRow, data: Mapping[str, Any] | None) -> None:
        """End the run, now; returns at once.

        Args:
            row: What the ledger says of the branch.
            data: The validated object of a branch with a schema.
        """
        outputs = {"verdict": row.verdict, "text": row.text, "data": data, "reason": row.reason}
        metadata = {
            **self._links,
            "shadow_of_tool_calls": list(row.tool_call_ids),
            **{name: getattr(row, name) for name in _COLUMNS},
        }
        account = Account(
            ended=time.time_ns(),
            model=self._model,
            inputs={**self._inputs, "carrier": row.carrier},
            outputs={k: v for k, v in outputs.items() if v},
            error=row.reason if row.verdict in ("failed", "shed") else None,
            metadata={k: v for k, v in metadata.items() if v is not None},
            prompt_tokens=row.prompt_tokens,
            generated=row.generated,
            cached=row.cached,
        )
        for end in self._ends:
            self._traces.post(functools.partial(end, account))


class Traces:
    """Opens a branch's trace in every system that is switched on, and ends it off the loop.

    Ended runs are handed over in a thread of their own: an exporter may do network I/O at once.
    When `size` of them wait, new ones are dropped.
    """

    def __init__(self, *, size: int = 1024) -> None:
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(maxsize=size)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def cause(
        self, run_id: UUID, parent: UUID | None, root: UUID | None, metadata: Mapping[str, Any]
    ) -> Cause:
        """The cause that a model call may become.

        Args:
            run_id: The call's run.
            parent: Its parent run.
            root: The root run that the callbacks saw; a traced function may be above it.
            metadata: The call's metadata.
        """
        trace_id = None
        try:
            tracer = langchain_tracer()
            above = tracer.run_map.get(str(parent)) if tracer is not None else None
            trace_id = above.trace_id if above is not None else None
        except Exception as error:
            self._complain("capture", error)
        return Cause(
            run_id=run_id,
            trace_id=trace_id or root or parent or run_id,
            thread={k: str(metadata[k]) for k in _THREAD_KEYS if metadata.get(k)},
        )

    def tracers(self) -> tuple[Tracer, ...]:
        """The systems that record what happens here, now."""
        found: list[Tracer] = []
        for system in (LangSmith, OpenTelemetry):
            try:
                tracer = system.capture()
            except Exception as error:
                self._complain("capture", error)
                continue
            if tracer is not None:
                found.append(tracer)
        return tuple(found)

    def open(
        self,
        branch: Branch,
        trunk: Trunk,
        *,
        step: int | None,
        cause: Cause | None,
        tracers: tuple[Tracer, ...],
    ) -> BranchTrace | None:
        """Open the trace of a branch that leaves now; None when nothing records it.

        Args:
            branch: The branch.
            trunk: What it runs against, with the model that it asks.
            step: LangGraph's step.
            cause: The model call that asked for the tool batch.
            tracers: The systems that record it.
        """
        if cause is None or not tracers:
            return None
        run_id, started = uuid7(), time.time_ns()
        ends = []
        for tracer in tracers:
            try:
                end = tracer.open(f"shadow:{branch.name}", run_id, started)
            except Exception as error:
                self._complain("open", error)
                continue
            if end is not None:
                ends.append(end)
        if not ends:
            return None
        return BranchTrace(
            run_id=run_id,
            _traces=self,
            _ends=tuple(ends),
            _model=trunk.model,
            _inputs=_inputs(branch, trunk),
            _links=_links(trunk, step, cause),
        )

    def post(self, end: Callable[[], None]) -> None:
        """Queue what ends a run."""
        self._ensure_thread()
        try:
            self._queue.put_nowait(end)
        except queue.Full as error:
            self._complain("queue", error)

    def join(self, timeout: float) -> bool:
        """Wait until what was queued is handed over, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._queue.all_tasks_done.wait(left)
        return True

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                # an empty context: a tracer must find no parent there, nor anyone's settings
                self._thread = threading.Thread(
                    target=contextvars.Context().run,
                    args=(self._run,),
                    name="langgraph-shadow-traces",
                    daemon=True,
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            end = self._queue.get()
            try:
                end()
            except Exception as error:
                self._complain("end", error)
            finally:
                self._queue.task_done()

    def _complain(self, where: str, error: Exception) -> None:
        with self._lock:
            if where in self._said:
                return
            self._said.add(where)
        log.warning(
            "a branch could not be traced (%s): %r; the ledger has it, and later failures of this "
            "kind are not reported",
            where,
            error,
        )


def _inputs(branch: Branch, trunk: Trunk) -> dict[str, Any]:
    """What was asked: the trunk is in the orchestrator's trace, and is not copied into another."""
    return {
        "instruction": branch.instruction,
        "trunk": {
            "messages": len(trunk.messages),
            "tools": len(trunk.tools),
            "fingerprint": trunk.fingerprint,
        },
    }


def _links(trunk: Trunk, step: int | None, cause: Cause) -> dict[str, Any]:
    return {
        **cause.thread,
        "shadow_of_run": str(cause.run_id),
        "shadow_of_trace": str(cause.trace_id),
        "node": trunk.key.node,
        "step": step,
    }
