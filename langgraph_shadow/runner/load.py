"""The server's load, read from `/metrics` at most once a second."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

from langgraph_shadow.server.metrics import ServerMetrics

log = logging.getLogger("langgraph_shadow.runner")

_PATIENCE_S = 2.0


class Load:
    """The newest reading of one server, shared by every loop. Thread-safe."""

    def __init__(
        self, *, max_age: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without a reading; one older than `max_age` seconds is read anew."""
        self._max_age = max_age
        self._clock = clock
        self._newest: ServerMetrics | None = None
        self._asked: float | None = None
        self._reading = 0
        self._lock = threading.Lock()

    async def read(self, fetch: Callable[[], Awaitable[ServerMetrics]]) -> ServerMetrics | None:
        """The load now, or about a second ago; None when the server does not say."""
        with self._lock:
            now = self._clock()
            recent = self._asked is not None and now - self._asked < self._max_age
            # others use the last reading meanwhile; while there is none yet, they read too
            if recent and (self._newest is not None or not self._reading):
                return self._newest
            self._asked = now
            self._reading += 1
        newest = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                newest = await fetch()
        except Exception as error:  # an unknown load is no reason to shed; the breaker decides
            log.debug("/metrics could not be read: %r", error)
        finally:
            with self._lock:
                self._reading -= 1
        self._newest = newest
        return newest
