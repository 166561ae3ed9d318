"""Runs without a thread id whose root no handler shows: they are known by their tool calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

_MAX_CALLS = 4096


class Nameless:
    """Which thread made which tool call. Thread-safe and bounded."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def made(self, thread: str, message: BaseMessage | None) -> None:
        """A model call of a thread was answered by this message."""
        with self._lock:
            for call_id in _call_ids(message):
                self._threads[call_id] = thread
                self._threads.move_to_end(call_id)
            while len(self._threads) > _MAX_CALLS:
                self._threads.popitem(last=False)

    def thread(self, call_ids: Iterable[str]) -> str | None:
        """The thread that made one of these calls; None when none of them is known."""
        with self._lock:
            return next((self._threads[i] for i in call_ids if i in self._threads), None)

    def continued(self, messages: Sequence[BaseMessage]) -> str | None:
        """The thread that a prompt continues: the one that made its newest tool calls."""
        newest = (m for m in reversed(messages) if isinstance(m, AIMessage) and m.tool_calls)
        return self.thread(_call_ids(next(newest, None)))


def _call_ids(message: BaseMessage | None) -> list[str]:
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    return [call["id"] for call in calls if call["id"]]
