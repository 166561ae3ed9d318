"""Where branches run: the running event loop of an async graph, or a loop thread of our own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any


def _nothing() -> None:
    return None


class Host:
    """One event loop that branches run on. Every method may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # a host must not keep a finished loop alive
        self._tasks: set[asyncio.Task[None]] = set()
        self.pid = os.getpid()

    @property
    def alive(self) -> bool:
        """Whether anything can still run here: the loop is open, and is this process's own."""
        loop = self._loop()
        return loop is not None and not loop.is_closed() and self.pid == os.getpid()

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None] = _nothing
    ) -> bool:
        """Start `work()` as a task in a fresh context; False when the loop has closed.

        A fresh context keeps the graph's callbacks, stream and trace parent away from the branch
        (facts/langgraph.md §5).

        Args:
            work: Makes the coroutine.
            ended: Called when the task is over, even when it was cancelled before its first step.
        """
        return self._post(lambda: self._start(work, ended))

    def signal(self, event: asyncio.Event) -> None:
        """Set an event that a task of this loop waits for."""
        self._post(event.set)

    def _post(self, call: Callable[[], None]) -> bool:
        loop = self._loop()
        if loop is None:
            return False
        try:
            if _running() is loop:
                contextvars.Context().run(call)
            else:
                loop.call_soon_threadsafe(call, context=contextvars.Context())
        except RuntimeError:  # the loop has closed: nothing can run there any more
            return False
        return True

    def _start(
        self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]
    ) -> None:
        task = asyncio.get_running_loop().create_task(work(), context=contextvars.Context())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: ended())


class Hosts:
    """Finds the host for the code that is running now."""

    def __init__(self) -> None:
        self._hosts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Host] = (
            weakref.WeakKeyDictionary()
        )
        self._own: Host | None = None
        self._own_pid = 0
        self._lock = threading.Lock()

    def current(self) -> Host:
        """The running loop's host, or the host of our own loop thread."""
        loop = _running()
        with self._lock:
            if loop is None:
                return self._own_host()
            host = self._hosts.get(loop)
            if host is None:
                host = self._hosts[loop] = Host(loop)
            return host

    def own(self) -> Host:
        """The host of our own loop thread, also where a loop is running: for code that waits."""
        with self._lock:
            return self._own_host()

    def _own_host(self) -> Host:
        # a forked child has the parent's loop object, but not its thread
        if self._own is None or self._own_pid != os.getpid():
            # a loop keeps the context it was made in, and with it the graph that runs there now
            loop = contextvars.Context().run(asyncio.new_event_loop)
            threading.Thread(
                target=_run_until_stopped, args=(loop,), name="langgraph-shadow", daemon=True
            ).start()
            self._own, self._own_pid = Host(loop), os.getpid()
            self._hosts[loop] = self._own
            weakref.finalize(self, _stop, loop).atexit = False
        return self._own


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it may have closed already
        loop.call_soon_threadsafe(loop.stop)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
