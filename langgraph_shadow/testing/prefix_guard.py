"""The guard for users' own tests: does this agent's prompt only grow at its end?"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel

from langgraph_shadow.adapters.binding import attached, watched
from langgraph_shadow.adapters.callbacks import RunsHandler, answer_of
from langgraph_shadow.adapters.histories import Histories
from langgraph_shadow.adapters.runs import Runs
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.report import Report
from langgraph_shadow.traces.messages import serialiser
from langgraph_shadow.trunk.capture import Capture
from langgraph_shadow.trunk.wire import wire_request

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

G = TypeVar("G")
M = TypeVar("M", bound=BaseChatModel)


class PrefixBroken(AssertionError):  # noqa: N818 - reads as pytest prints it, like GhostFound
    """An agent sent a prompt that does not extend the one before it.

    Attributes:
        reports: The breaks.
    """

    def __init__(self, message: str, reports: tuple[Report, ...] = ()) -> None:
        super().__init__(message)
        self.reports = reports


class PrefixGuard:
    """Watches an agent's model calls, on any chat model, and tells whether they broke the prefix.

    Nothing is sent anywhere, and the run itself is not changed.

    Example:
        ```python
        def test_my_agent(prefix_guard):
            graph = prefix_guard.attach(build_graph())
            graph.invoke({"messages": [("user", "Which fjord is deepest?")]})
        ```
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._reports: list[Report] = []
        self._guard = Guard(mode="observe", on_report=self._reports.append)
        self._handler = _Handler(self._guard)

    @property
    def callbacks(self) -> list[BaseCallbackHandler]:
        """The handler, for `config={"callbacks": prefix_guard.callbacks}`."""
        return [self._handler]

    @property
    def calls(self) -> int:
        """Model calls seen."""
        return self._handler.calls

    @property
    def breaks(self) -> tuple[Report, ...]:
        """The breaks so far that were not announced."""
        return tuple(r for r in self._reports if r.expected is None)

    def attach(self, graph: G) -> G:
        """Return the compiled graph with the callbacks bound; the graph itself is unchanged.

        Raises:
            TypeError: `graph` has no `with_config`; compile it first.
        """
        return attached(graph, self.callbacks)

    def watch(self, llm: M) -> M:
        """Return a copy of the model that carries the callbacks."""
        return watched(llm, self.callbacks)

    def expect_break(self, thread: str, reason: str) -> None:
        """Announce a deliberate break, for example a compaction: the next one is no failure."""
        self._guard.expect_break(thread, reason)

    def forgive(self) -> None:
        """Drop the breaks so far, for a test that looks at them itself."""
        self._reports.clear()

    def assert_unbroken(self) -> None:
        """Fail when the prefix was broken, or when nothing was watched or could be compared.

        Raises:
            PrefixBroken: With every break and its repair, or what kept it from looking.
        """
        if not self.calls:
            msg = (
                "prefix_guard saw no model call: run the graph that prefix_guard.attach(graph) "
                "returns, or pass config={'callbacks': prefix_guard.callbacks}."
            )
            raise PrefixBroken(msg)
        if self._handler.failures:
            msg = f"prefix_guard could not compare a prompt: {self._handler.failures[0]}"
            raise PrefixBroken(msg)
        if self.breaks:
            raise PrefixBroken(_message(self.breaks, self.calls), self.breaks)


class _Handler(RunsHandler):
    """Turns each model call into a trunk and shows it to the guard."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(Runs())
        self.calls = 0
        self.failures: list[str] = []
        self._guard = guard
        self._capture = Capture()
        self._histories = Histories(self._runs)
        self._threads: dict[UUID, str] = {}
        self._lock = threading.Lock()

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        key = self._histories.key(
            messages[0], run_id=run_id, parent=parent_run_id, metadata=metadata or {}
        )
        if key is None:
            return
        with self._lock:
            if run_id in self._threads:  # attached and watched: the same call comes twice
                return
            self._threads[run_id] = key.thread
            self.calls += 1
        try:
            request = wire_request(kwargs.get("invocation_params") or {})
            self._guard.check(self._capture.trunk(serialiser(), messages[0], request, key))
        except Exception as error:  # raised from here it would only be logged
            self.failures.append(repr(error))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        thread = self._threads.get(run_id)
        if thread is not None:
            self._histories.answered(thread, answer_of(response))


def _message(reports: tuple[Report, ...], calls: int) -> str:
    times = "once" if len(reports) == 1 else f"{len(reports)} times"
    lines = [f"The agent broke its prefix {times} in {calls} model calls:"]
    lines += [f"  {i}. {report.message()}" for i, report in enumerate(reports, 1)]
    return "\n".join(lines)
