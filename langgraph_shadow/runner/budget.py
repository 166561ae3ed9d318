"""The budget: decides before a branch leaves whether everyone else can bear it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from langgraph_shadow.runner.breaker import Breaker
from langgraph_shadow.runner.load import Load
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Options
from langgraph_shadow.runner.slowdown import Slowdown
from langgraph_shadow.server.metrics import ServerMetrics

log = logging.getLogger("langgraph_shadow.runner")

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a branch is shed.

    Attributes:
        kind: The limit, for one log line per kind.
        reason: The same in plain words, for the event and the ledger.
    """

    kind: str
    reason: str


class Budget:
    """What all branches of one `Shadow` may cost. Thread-safe.

    Attributes:
        breaker: Keeps branches away from a server that fails.
    """

    def __init__(
        self, options: Options, *, once: Once, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with nothing spent.

        Args:
            options: The limits.
            once: For the log line of each kind of refusal.
            clock: Seconds, from any start.
        """
        self._options = options
        self._once = once
        self._clock = clock
        self.breaker = Breaker(
            max_failures=options.max_failures, cool_down=options.cool_down, clock=clock
        )
        self._load = Load(clock=clock)
        self._slowdown = Slowdown(clock=clock)
        self._spent: deque[tuple[float, int]] = deque()
        self._running = 0
        self._last_ran = float("-inf")
        self._lock = threading.Lock()

    def closed(self) -> Refusal | None:
        """Why no branch may be sent to the server at all; None when one may be tried."""
        reason = self.breaker.reason
        return None if reason is None else Refusal("max_failures", reason)

    async def pressure(self, metrics: Callable[[], Awaitable[ServerMetrics]]) -> Refusal | None:
        """The first limit that is exceeded now, or None.

        Args:
            metrics: Reads the server's `/metrics`; called at most once a second.
        """
        return self._tokens() or self._felt() or await self._server(metrics)

    def say(self, refusal: Refusal) -> None:
        """Log a refusal, the first of each kind."""
        self._once.warn(
            log,
            f"shed-{refusal.kind}",
            "branches are shed (%s): %s; the ledger counts them",
            refusal.kind,
            refusal.reason,
        )

    def spend(self, tokens: int) -> None:
        """Record tokens that the server computed for a branch."""
        if self._options.max_tokens_per_minute is not None:
            with self._lock:
                self._spent.append((self._clock(), tokens))

    @contextmanager
    def running(self) -> Iterator[None]:
        """A branch is running; the orchestrator's calls meanwhile are beside it."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._last_ran = time.perf_counter()

    def first_token(self, started: float) -> None:
        """A call of the orchestrator that began at `started` (`time.perf_counter`) has one now."""
        if self._options.max_slowdown is None:
            return
        beside = self._running > 0 or self._last_ran > started
        self._slowdown.add(time.perf_counter() - started, beside=beside)

    def _tokens(self) -> Refusal | None:
        limit = self._options.max_tokens_per_minute
        if limit is None:
            return None
        with self._lock:
            since = self._clock() - _MINUTE_S
            while self._spent and self._spent[0][0] <= since:
                self._spent.popleft()
            spent = sum(tokens for _, tokens in self._spent)
        if spent < limit:
            return None
        reason = f"branches computed {spent} tokens in the last minute; the limit is {limit}"
        return Refusal("max_tokens_per_minute", reason)

    def _felt(self) -> Refusal | None:
        limit = self._options.max_slowdown
        share = self._slowdown.share() if limit is not None else None
        if limit is None or share is None or share <= limit:
            return None
        reason = (
            f"the agent's first token took {share:.0%} longer beside branches; "
            f"the limit is {limit:.0%}"
        )
        return Refusal("max_slowdown", reason)

    async def _server(self, metrics: Callable[[], Awaitable[ServerMetrics]]) -> Refusal | None:
        max_queue, max_kv_usage = self._options.max_queue, self._options.max_kv_usage
        if max_queue is None and max_kv_usage is None:
            return None
        load = await self._load.read(metrics)
        if load is None:
            return None
        if max_queue is not None and load.num_requests_waiting > max_queue:
            reason = (
                f"{load.num_requests_waiting} requests were waiting at the server; "
                f"the limit is {max_queue}"
            )
            return Refusal("max_queue", reason)
        if max_kv_usage is not None and load.kv_cache_usage > max_kv_usage:
            reason = (
                f"{load.kv_cache_usage:.0%} of the server's KV cache was in use; "
                f"the limit is {max_kv_usage:.0%}"
            )
            return Refusal("max_kv_usage", reason)
        return None
