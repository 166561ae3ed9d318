"""From what LangChain's callbacks show to trunks, calls and guard findings."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langgraph_shadow.adapters.findings import Findings
from langgraph_shadow.adapters.histories import Histories
from langgraph_shadow.adapters.mending import MARK, Mending
from langgraph_shadow.adapters.routing import Routing
from langgraph_shadow.adapters.runs import Runs
from langgraph_shadow.delivery.calls import CallRow
from langgraph_shadow.delivery.ledger import Ledger
from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.delivery.traces import Traces
from langgraph_shadow.errors import AlignmentError, PrefixMutationError
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.repair import Repair
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.runner.lines import Call
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.runner import Runner
from langgraph_shadow.trunk.capture import Capture
from langgraph_shadow.trunk.model import Trunk
from langgraph_shadow.trunk.wire import WireRequest, wire_messages, wire_request

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage, ToolMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI

log = logging.getLogger("langgraph_shadow")

_REMEMBERED_CALLS = 256


@dataclass(frozen=True, slots=True)
class _Seen:
    trunk: Trunk
    request: WireRequest
    route: Route
    repairs: tuple[Repair, ...] = ()


class Sight:
    """What both handlers see of a model call; it is put in wire form once."""

    def __init__(
        self,
        llm: BaseChatOpenAI,
        *,
        runs: Runs,
        capture: Capture,
        guard: Guard,
        runner: Runner,
        ledger: Ledger,
        findings: Findings,
        traces: Traces,
        once: Once,
        mending: Mending | None,
        routing: Routing,
    ) -> None:
        """Wire the pieces together.

        Args:
            llm: Its serialiser puts messages in wire form.
            runs: Which run a callback belongs to.
            capture: Makes trunks.
            guard: Compares them.
            runner: Runs branches.
            ledger: Where calls are recorded.
            findings: Where breaks and repairs go.
            traces: Captures what branches are traced to.
            once: For warnings.
            mending: Repairs the calls of stabilised models; None when the guard does not repair.
            routing: Puts the session on the requests of watched models.
        """
        self.runner = runner
        self._llm = llm
        self._runs = runs
        self._capture = capture
        self._guard = guard
        self._ledger = ledger
        self._findings = findings
        self._traces = traces
        self._once = once
        self._mending = mending
        self._routing = routing
        self._histories = Histories(runs)
        self._seen: OrderedDict[UUID, _Seen | None] = OrderedDict()
        self._vetoed: dict[UUID, PrefixMutationError] = {}
        self._guarded: OrderedDict[UUID, None] = OrderedDict()
        self._started: OrderedDict[UUID, None] = OrderedDict()
        self._lock = threading.Lock()

    def guard(
        self,
        serialized: Mapping[str, Any] | None,
        messages: Sequence[Sequence[BaseMessage]],
        run_id: UUID,
        parent: UUID | None,
        metadata: Mapping[str, Any],
        extra: Mapping[str, Any],
    ) -> None:
        """Compare a call's trunk with the one before it.

        Raises:
            PrefixMutationError: The guard rejects this break.
        """
        seen = self._see(messages, run_id, parent, metadata, extra)
        if seen is None:
            return
        if not self._first_time(self._guarded, run_id):
            if run_id in self._vetoed:
                raise self._vetoed.pop(run_id)
            return
        for repair in seen.repairs:
            self._findings.repaired(seen.trunk.key, repair)
        before = self._guard.newest(seen.trunk.key)
        try:
            report = self._guard.check(seen.trunk, silent=True)
        except PrefixMutationError as error:
            self._vetoed[run_id] = error
            self._findings.rejected(error.report)
            raise
        if report is not None:
            self._findings.found(report, before, seen.trunk)
        self._findings.learn_fields(seen.trunk)

    def started(
        self,
        serialized: Mapping[str, Any] | None,
        messages: Sequence[Sequence[BaseMessage]],
        run_id: UUID,
        parent: UUID | None,
        metadata: Mapping[str, Any],
        extra: Mapping[str, Any],
    ) -> None:
        """Tell the runner of a call, once even when several front doors show it.

        A call that the guard vetoes is not told: the guard's own handler comes next and stops it.
        """
        try:
            self.guard(serialized, messages, run_id, parent, metadata, extra)
        except PrefixMutationError:
            return
        seen = self._see(messages, run_id, parent, metadata, extra)
        if seen is None or not self._first_time(self._started, run_id):
            return
        call = Call(
            run_id=run_id,
            trunk=seen.trunk,
            origin=_origin(serialized),
            route=seen.route,
            root=self._runs.root(parent),
            step=metadata.get("langgraph_step"),
            target=StreamTarget.capture(),
            streams=seen.request.stream,
            cause=self._traces.cause(run_id, parent, self._runs.root(parent), metadata),
            tracers=self._traces.tracers(),
        )
        self.runner.model_started(call, [m.id for m in messages[0]])

    def token(self, run_id: UUID, chunk: Any) -> None:
        """A call streamed a piece of its answer."""
        self.runner.model_token(run_id)
        message = getattr(chunk, "message", None)
        if self._mending is not None and message is not None:
            self._mending.saw_chunk(run_id, message)

    def ended(self, run_id: UUID, message: BaseMessage | None) -> None:
        """A call ended, with its answer or (None) with an error."""
        with self._lock:
            seen = self._seen.pop(run_id, None)
        if seen is not None:
            self._histories.answered(seen.trunk.key.thread, message)
        self._routing.ended(run_id, message)
        if self._mending is not None and seen is not None:
            self._mending.ended(run_id, seen.trunk.key.thread, message)
        call = self.runner.model_ended(run_id, message)
        if call is not None:
            self._ledger.add_call(
                CallRow.of(
                    call.trunk.key,
                    message,
                    started=call.started,
                    first_token=call.first_token_at,
                    ended=time.perf_counter(),
                )
            )
        final = message is not None and not getattr(message, "tool_calls", None)
        if call is not None and call.root is None and final:  # the run's end will not be seen
            self._rest(call.trunk.key.thread)

    def captured(self, run_id: UUID) -> tuple[Trunk, Route, tuple[Trunk, ...]] | None:
        """What was captured of a call that is going on.

        Returns:
            Its trunk, what else leads to its replica, and the newest trunks of the other nodes of
            its history.
        """
        with self._lock:
            seen = self._seen.get(run_id)
        if seen is None:
            return None
        return seen.trunk, seen.route, self._capture.beside(seen.trunk.key)

    def run_over(self, root: UUID, *, failed: bool) -> None:
        """A graph run ended, or failed or was cancelled: keep little of its threads."""
        for thread in self.runner.run_over(root, failed=failed):
            self._rest(thread)

    def _rest(self, thread: str) -> None:
        self._capture.forget(thread)
        # a thread, because a task could be left behind by the run's own event loop
        rest = threading.Thread(
            target=self._guard.rest, args=(thread,), name="langgraph-shadow-rest", daemon=True
        )
        with contextlib.suppress(RuntimeError):  # the interpreter is ending
            rest.start()

    def tools_finished(
        self,
        thread: str | None,
        namespace: str,
        messages: Sequence[ToolMessage],
        *,
        assistant: BaseMessage | None = None,
    ) -> bool:
        """Tool results came in; False when no model call of this history was ever seen."""
        if thread is None:
            thread = self._histories.maker(m.tool_call_id for m in messages) or ""
        wire = wire_messages(self._llm, messages)
        results = {m.tool_call_id: w for m, w in zip(messages, wire, strict=True)}
        return self.runner.tools_finished(thread, namespace, results, assistant=assistant)

    def _see(
        self,
        messages: Sequence[Sequence[BaseMessage]],
        run_id: UUID,
        parent: UUID | None,
        metadata: Mapping[str, Any],
        extra: Mapping[str, Any],
    ) -> _Seen | None:
        with self._lock:
            if run_id in self._seen:
                return self._seen[run_id]
        seen = self._capture_call(messages, run_id, parent, metadata, extra)
        with self._lock:
            self._seen[run_id] = seen
            while len(self._seen) > _REMEMBERED_CALLS:
                self._seen.popitem(last=False)
        return seen

    def _capture_call(
        self,
        messages: Sequence[Sequence[BaseMessage]],
        run_id: UUID,
        parent: UUID | None,
        metadata: Mapping[str, Any],
        extra: Mapping[str, Any],
    ) -> _Seen | None:
        if not messages or not messages[0]:
            return None
        key = self._histories.key(messages[0], run_id=run_id, parent=parent, metadata=metadata)
        if key is None:
            return None
        request = wire_request(extra.get("invocation_params") or {})
        request, route = self._routing.route(run_id, key, request, metadata)
        try:
            trunk = self._capture.trunk(self._llm, messages[0], request, key)
        except AlignmentError as error:
            self._once.warn(log, "no-wire", "no trunk could be captured: %s", error.reason)
            return None
        repairs: tuple[Repair, ...] = ()
        if self._mending is not None and metadata.get(MARK):
            trunk, repairs = self._mending.repair(trunk)
        self._routing.converse(run_id, trunk)
        return _Seen(trunk, request, route, repairs)

    def _first_time(self, known: OrderedDict[UUID, None], run_id: UUID) -> bool:
        with self._lock:
            if run_id in known:
                return False
            known[run_id] = None
            while len(known) > _REMEMBERED_CALLS:
                known.popitem(last=False)
        return True


def _origin(serialized: Mapping[str, Any] | None) -> str:
    kwargs = (serialized or {}).get("kwargs") or {}
    return str(kwargs.get("openai_api_base") or kwargs.get("base_url") or "").rstrip("/")
