"""Small things done in the background with a server: pricing a break, probing a template."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from langgraph_shadow.hosts import Host
from langgraph_shadow.runner.server import Server

log = logging.getLogger("langgraph_shadow.runner")

Work = Callable[[Server], Awaitable[None]]


class Errands:
    """Runs errands on the caller's loop; each one that fails does its `otherwise` instead."""

    def __init__(
        self, server: Callable[[Host], AbstractAsyncContextManager[Server]], *, timeout: float
    ) -> None:
        """Use `server` to reach the server from a loop; give each errand `timeout` seconds."""
        self._server = server
        self._timeout = timeout
        self._open: dict[concurrent.futures.Future[None], Host] = {}
        self._lock = threading.Lock()

    def run(self, host: Host, work: Work, otherwise: Callable[[], None]) -> None:
        """Do `work` in the background; call `otherwise` when it could not be done."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            self._open[done] = host

        async def errand() -> None:
            try:
                async with self._server(host) as server, asyncio.timeout(self._timeout):
                    await work(server)
            except BaseException as error:
                log.debug("an errand was not done: %r", error)
                otherwise()
                if not isinstance(error, Exception):
                    raise

        def over() -> None:
            with self._lock:
                self._open.pop(done, None)
            if not done.done():
                done.set_result(None)

        if not host.spawn(errand, over):
            otherwise()
            over()

    def open(self) -> list[concurrent.futures.Future[None]]:
        """The errands that are not over."""
        with self._lock:
            return [done for done, host in self._open.items() if host.alive]
