"""Hands each event to everyone who asked for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.delivery.sinks import EventFunction, FunctionSink, QueueSink, StreamTarget
from langgraph_shadow.hosts import Hosts


class Post:
    """The stream of the run, the subscriptions and the user's function, in this order."""

    def __init__(self, hosts: Hosts, *, function: EventFunction | None, size: int = 1024) -> None:
        self._queue = QueueSink(hosts, size=size)
        self._function = FunctionSink(function, size=size) if function is not None else None

    def deliver(self, event: ShadowEvent, target: StreamTarget | None) -> bool:
        """Deliver an event; False when nobody took it."""
        streamed = target.send(event) if target is not None else False
        queued = self._queue.publish(event)
        called = self._function.publish(event) if self._function is not None else False
        return streamed or queued or called

    def subscribe(self) -> AsyncIterator[ShadowEvent]:
        """Iterate over events from now on."""
        return self._queue.subscribe()

    def join(self, timeout: float) -> None:
        """Wait until the user's function has seen everything, at most `timeout` seconds."""
        if self._function is not None:
            self._function.join(timeout)

    def close(self) -> None:
        """End the subscriptions."""
        self._queue.close()
