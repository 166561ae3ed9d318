"""Where events go: LangGraph's stream, a queue, a function. None of them may hurt the graph."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from langgraph.config import get_stream_writer

from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.hosts import Host, Hosts

log = logging.getLogger("langgraph_shadow.delivery")

EventFunction = Callable[[ShadowEvent], "Awaitable[None] | None"]


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """A way into the `custom` stream of the run that is going on now.

    The writer looks up its run when it is called, so it is called inside the captured context
    (facts/langgraph.md §5).
    """

    context: contextvars.Context
    writer: Callable[[Any], None]

    @classmethod
    def capture(cls) -> StreamTarget | None:
        """Capture the current run's writer; None outside a run."""
        try:
            writer = get_stream_writer()
        except (RuntimeError, KeyError):
            return None
        return cls(context=contextvars.copy_context(), writer=writer)

    def send(self, event: ShadowEvent) -> bool:
        """Write the event; False when the run's stream is gone."""
        try:
            self.context.run(self.writer, event.wire())
        except Exception as error:  # whatever the stream does must not reach the graph
            log.debug("the run's stream took no event: %r", error)
            return False
        return True


class QueueSink:
    """Subscriptions that iterate over events; each has a bounded queue of its own."""

    def __init__(self, hosts: Hosts, *, size: int) -> None:
        self._hosts = hosts
        self._size = size
        self._subscriptions: list[_Subscription] = []
        self._lock = threading.Lock()

    def publish(self, event: ShadowEvent) -> bool:
        """Hand the event to every subscription; False when there is none."""
        with self._lock:
            subscriptions = tuple(self._subscriptions)
        for subscription in subscriptions:
            subscription.put(event)
        return bool(subscriptions)

    def subscribe(self) -> AsyncIterator[ShadowEvent]:
        """Start to receive events, from now until `close`."""
        subscription = _Subscription(self._hosts.current(), deque(maxlen=self._size))
        with self._lock:
            self._subscriptions.append(subscription)
        return self._iterate(subscription)

    async def _iterate(self, subscription: _Subscription) -> AsyncIterator[ShadowEvent]:
        try:
            async for event in subscription:
                yield event
        finally:
            with self._lock:
                if subscription in self._subscriptions:
                    self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End every iteration once its queue is empty."""
        with self._lock:
            subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()


class _Subscription:
    """A bounded queue from any thread into one loop; when full, the oldest event falls out."""

    def __init__(self, host: Host, events: deque[ShadowEvent]) -> None:
        self._host = host
        self._events = events
        self._closed = False
        self._ready = asyncio.Event()

    def put(self, event: ShadowEvent) -> None:
        self._events.append(event)
        self._host.signal(self._ready)

    def close(self) -> None:
        self._closed = True
        self._host.signal(self._ready)

    async def __aiter__(self) -> AsyncIterator[ShadowEvent]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._ready.clear()
            if not self._events and not self._closed:
                await self._ready.wait()


class FunctionSink:
    """Calls the user's function for each event, one at a time, in a thread of its own.

    A function that blocks then holds up nothing but later calls of itself; a coroutine function is
    awaited there too. When `size` events wait, new ones are dropped and counted.
    """

    def __init__(self, function: EventFunction, *, size: int) -> None:
        self._function = function
        self._queue: queue.Queue[ShadowEvent | None] = queue.Queue(maxsize=size)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._complained = False

    def publish(self, event: ShadowEvent) -> bool:
        """Queue the event; False when the queue is full, or no thread can be started."""
        try:
            self._ensure_thread()
            self._queue.put_nowait(event)
        except (queue.Full, RuntimeError):
            return False
        return True

    def join(self, timeout: float) -> None:
        """Wait until the queued events were handed over, at most `timeout` seconds."""
        done = threading.Event()

        def wait() -> None:
            self._queue.join()
            done.set()

        threading.Thread(target=wait, daemon=True).start()
        done.wait(timeout)

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._pid != os.getpid():  # a fork copies the queue, but not the thread that waits
                self._pid, self._queue = os.getpid(), queue.Queue(self._queue.maxsize)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="langgraph-shadow-events", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            event = self._queue.get()
            try:
                if event is None:
                    return
                result = self._function(event)
                if inspect.isawaitable(result):
                    asyncio.run(_await(result))
            except BaseException:  # a cancellation or an exit in there is the user's, too
                if not self._complained:
                    self._complained = True
                    log.exception("your on_event function raised; later ones are not reported")
            finally:
                self._queue.task_done()


async def _await(result: Awaitable[None]) -> None:
    await result
