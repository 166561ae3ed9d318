"""Whether the orchestrator's first tokens come later while branches are running."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 300.0
SAMPLES = 64
"""Newest first-token times kept on each side."""
NEEDED = 8
"""Below this, on either side, there is no answer: single calls differ widely."""


class Slowdown:
    """Compares medians of the last minutes: calls beside branches with calls alone. Thread-safe.

    When branches stay away because of the answer, the calls beside them fall out of the window and
    branches are tried again.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beside: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._alone: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._lock = threading.Lock()

    def add(self, seconds: float, *, beside: bool) -> None:
        """Record one first-token time of the orchestrator."""
        with self._lock:
            (self._beside if beside else self._alone).append((self._clock(), seconds))

    def share(self) -> float | None:
        """How much longer the first token takes beside branches (0.1: a tenth), when known."""
        since = self._clock() - WINDOW_S
        with self._lock:
            beside = [s for at, s in self._beside if at >= since]
            alone = [s for at, s in self._alone if at >= since]
        if min(len(beside), len(alone)) < NEEDED:
            return None
        usual = statistics.median(alone)
        return statistics.median(beside) / usual - 1 if usual > 0 else None
