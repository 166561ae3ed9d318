"""Places for branches in flight: bounded, and the newest batch wins."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from langgraph_shadow.hosts import Host


@dataclass(eq=False, slots=True)
class _Waiter:
    host: Host
    event: asyncio.Event
    granted: bool = False
    shed: bool = False


class Slots:
    """Up to `places` holders at once, across loops and threads.

    A freed place goes to the newest waiter, because its news is freshest; when more than `waiting`
    wait, the oldest is shed.
    """

    def __init__(self, *, places: int, waiting: int) -> None:
        self._free = places
        self._max_waiting = waiting
        self._waiters: list[_Waiter] = []
        self._lock = threading.Lock()

    async def acquire(self, host: Host) -> bool:
        """Wait for a place; False when this waiter was shed for a newer one."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            waiter = _Waiter(host=host, event=asyncio.Event())
            self._waiters.append(waiter)
            oldest = self._waiters.pop(0) if len(self._waiters) > self._max_waiting else None
        if oldest is not None:
            oldest.shed = True
            oldest.host.signal(oldest.event)
        try:
            await waiter.event.wait()
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise
        return waiter.granted

    def release(self) -> None:
        """Give the place to the newest waiter, or back."""
        with self._lock:
            waiter = self._waiters.pop() if self._waiters else None
            if waiter is None:
                self._free += 1
                return
            waiter.granted = True
        waiter.host.signal(waiter.event)

    def _abandon(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if waiter.granted:
            self.release()
