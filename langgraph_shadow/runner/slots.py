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
        self._places = places
        self._holders: list[Host] = []
        self._max_waiting = waiting
        self._waiters: list[_Waiter] = []
        self._lock = threading.Lock()

    async def acquire(self, host: Host) -> bool:
        """Wait for a place; False when this waiter was shed for a newer one."""
        with self._lock:
            self._forget_dead()
            if len(self._holders) < self._places:
                self._holders.append(host)
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

    def release(self, host: Host) -> None:
        """Give the place that was acquired for `host` to the newest waiter, or back."""
        with self._lock:
            self._forget_dead()
            if host in self._holders:
                self._holders.remove(host)
            if not self._waiters or len(self._holders) >= self._places:
                return
            waiter = self._waiters.pop()
            waiter.granted = True
            self._holders.append(waiter.host)
        waiter.host.signal(waiter.event)

    def _forget_dead(self) -> None:
        # a loop that was closed, or left behind by a fork, never gives its places back
        self._holders = [h for h in self._holders if h.alive]
        self._waiters = [w for w in self._waiters if w.host.alive]

    def _abandon(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if waiter.granted:
            self.release(waiter.host)
