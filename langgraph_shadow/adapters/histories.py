"""Which history a model call belongs to; one whose run has no thread id included."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.messages import AIMessage

from langgraph_shadow.adapters.runs import Runs, checkpoint_namespace, graph_namespace
from langgraph_shadow.trunk.model import TrunkKey

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

_MAX_CALLS = 4096


class Histories:
    """Names the history of each model call. Thread-safe and bounded.

    A run without a thread id is named by its root; where no handler shows the root, the calls of
    one history are found together by the tool calls that they made.
    """

    def __init__(self, runs: Runs) -> None:
        """Name histories by these runs."""
        self._runs = runs
        self._makers: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def key(
        self,
        messages: Sequence[BaseMessage],
        *,
        run_id: UUID,
        parent: UUID | None,
        metadata: Mapping[str, Any],
    ) -> TrunkKey | None:
        """The history of a call; None for a tool's own call or a summariser's."""
        namespace = checkpoint_namespace(metadata)
        if metadata.get("lc_source") or self._runs.inside_tool(parent, namespace):
            return None
        thread = (
            metadata.get("thread_id")
            or self._runs.root(parent)
            or self._continued(messages)
            or parent
            or run_id
        )
        return TrunkKey(
            thread=str(thread),
            namespace=graph_namespace(namespace),
            node=str(metadata.get("langgraph_node") or ""),
        )

    def answered(self, thread: str, message: BaseMessage | None) -> None:
        """A model call of a thread was answered by this message."""
        with self._lock:
            for call_id in _call_ids(message):
                self._makers[call_id] = thread
                self._makers.move_to_end(call_id)
            while len(self._makers) > _MAX_CALLS:
                self._makers.popitem(last=False)

    def maker(self, call_ids: Iterable[str]) -> str | None:
        """The thread that made one of these tool calls; None when none of them is known."""
        with self._lock:
            return next((self._makers[i] for i in call_ids if i in self._makers), None)

    def _continued(self, messages: Sequence[BaseMessage]) -> str | None:
        """The thread that a prompt continues: the one that made its newest tool calls."""
        newest = (m for m in reversed(messages) if isinstance(m, AIMessage) and m.tool_calls)
        return self.maker(_call_ids(next(newest, None)))


def _call_ids(message: BaseMessage | None) -> list[str]:
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    return [call["id"] for call in calls if call["id"]]
