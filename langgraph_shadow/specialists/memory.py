"""Which prompts the server was sent, as token ids: what the next prompt can find in its cache."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque

from langgraph_shadow.alignment.blocks import common_prefix

_PER_THREAD = 8
_MAX_TOKENS = 4_000_000
"""Tokens remembered in all, four bytes each."""


class SentPrompts:
    """The newest prompts of each thread; the least recently used threads fall out. Thread-safe."""

    def __init__(self) -> None:
        self._threads: OrderedDict[tuple[str, str], deque[array[int]]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, salt: str, thread: str, items: tuple[int, ...]) -> None:
        """Remember a prompt that is being sent under this cache salt."""
        with self._lock:
            prompts = self._threads.setdefault((salt, thread), deque(maxlen=_PER_THREAD))
            self._threads.move_to_end((salt, thread))
            prompts.append(array("I", items))
            while len(self._threads) > 1 and self._total() > _MAX_TOKENS:
                self._threads.popitem(last=False)

    def shared(self, salt: str, thread: str, items: tuple[int, ...]) -> int | None:
        """Tokens of the longest prefix that was sent; None when nothing of this thread was.

        Other threads' prompts count too: they may begin with the same words.
        """
        ids = array("I", items)
        with self._lock:
            if (salt, thread) not in self._threads:
                return None
            sent = [p for (s, _), ps in self._threads.items() if s == salt for p in ps]
        return max(common_prefix(ids, prompt) for prompt in sent)

    def _total(self) -> int:
        return sum(len(p) for prompts in self._threads.values() for p in prompts)
