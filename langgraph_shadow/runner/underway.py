"""The batches in progress: each ends exactly once, even when its event loop ends before it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.batch_run import BatchRun
from langgraph_shadow.runner.once import Once

log = logging.getLogger("langgraph_shadow.runner")

_LOOP_ENDED = "the event loop ended first; await shadow.drain() before it does"


@dataclass(eq=False, slots=True)
class _Active:
    """A batch in progress: its branches, once it runs, and a future for those who wait."""

    run: BatchRun | None = None
    done: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)


class Underway:
    """Starts batches on their loops and accounts for each of them. Thread-safe."""

    def __init__(
        self,
        *,
        prepare: Callable[[Batch], BatchRun],
        work: Callable[[BatchRun], Awaitable[None]],
        finished: Callable[[Batch], None],
        once: Once,
    ) -> None:
        """Nothing is in progress yet.

        Args:
            prepare: Makes the branches of a batch.
            work: Runs them.
            finished: Told of each batch that is over.
            once: For warnings.
        """
        self._prepare = prepare
        self._work = work
        self._finished = finished
        self._once = once
        self._active: dict[Batch, _Active] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Batches in progress."""
        return len(self._active)

    def futures(self) -> list[concurrent.futures.Future[None]]:
        """One future per batch in progress, done when the batch is over."""
        with self._lock:
            return [active.done for active in self._active.values()]

    def launch(self, batch: Batch | None) -> None:
        """Start a batch on its loop; nothing to do for None."""
        if batch is None:
            return
        with self._lock:
            self._active[batch] = _Active()
        if not batch.host.spawn(lambda: self._run(batch), lambda: self._lost(batch)):
            self._lost(batch)

    def release(self) -> list[concurrent.futures.Future[None]]:
        """Let every batch go that waits for its launch; returns a future for each."""
        with self._lock:
            active = dict(self._active)
        for batch in active:
            if not batch.host.alive:
                self._lost(batch)
            batch.drained.happen()
            batch.run_over.happen()
        return [a.done for a in active.values()]

    async def _run(self, batch: Batch) -> None:
        run = self._active[batch].run = self._prepare(batch)
        try:
            await self._work(run)
        except asyncio.CancelledError:
            run.shed_rest(_LOOP_ENDED)
            raise
        except Exception as error:
            self._once.warn(log, f"bug-{type(error).__name__}", "a batch failed: %r", error)
            run.shed_rest(f"{type(error).__name__}: {error}")
        finally:
            self._close(batch)

    def _lost(self, batch: Batch) -> None:
        """Account for a batch whose event loop ended before it was done."""
        with self._lock:
            active = self._active.get(batch)
        if active is None:
            return
        if batch.host.pid == os.getpid():  # else a fork left it behind: it is its parent's
            run = active.run or self._prepare(batch)
            run.shed_rest(_LOOP_ENDED)
        self._close(batch)

    def _close(self, batch: Batch) -> None:
        with self._lock:
            active = self._active.pop(batch, None)
        self._finished(batch)
        if active is not None:
            active.done.set_result(None)
