"""The circuit breaker: a server that keeps failing is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LONGEST_COOL_DOWN = 300.0
"""Seconds; the cool-down doubles with every failed probe, up to this."""


class Breaker:
    """Opens after some failures in a row; after a cool-down one probe branch decides. Thread-safe.

    Only failures of the server count. A refusal of one prompt (too long, not alignable) says
    nothing about the next one.
    """

    def __init__(
        self,
        *,
        max_failures: int,
        cool_down: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a closed breaker.

        Args:
            max_failures: Failures in a row that open it.
            cool_down: Seconds without branches after that, at first.
            clock: Seconds, from any start.
        """
        self._max_failures = max_failures
        self._first_cool_down = self._cool_down = cool_down
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None
        self._probing = False
        self._lock = threading.Lock()

    @property
    def reason(self) -> str | None:
        """Why branches must stay away now; None when one may be tried."""
        with self._lock:
            return self._reason()

    def enter(self) -> bool:
        """A branch leaves, and owes a `record`; True when it is the probe."""
        with self._lock:
            probe = self._open_until is not None and not self._probing
            self._probing |= probe
            return probe

    def record(self, *, probe: bool, healthy: bool | None) -> None:
        """What a branch learned of the server: fine, failing, or (None) nothing."""
        with self._lock:
            if probe:
                self._probing = False
            if healthy:
                self._failures, self._open_until = 0, None
                self._cool_down = self._first_cool_down
            elif healthy is False:
                self._failed(probe=probe)

    def _failed(self, *, probe: bool) -> None:
        self._failures += 1
        if probe:
            self._cool_down = min(2 * self._cool_down, LONGEST_COOL_DOWN)
        elif self._open_until is not None or self._failures < self._max_failures:
            return  # it left before the breaker opened, or is one of few
        self._open_until = self._clock() + self._cool_down

    def _reason(self) -> str | None:
        if self._open_until is None:
            return None
        failed = f"the server failed {self._failures} times in a row"
        left = self._open_until - self._clock()
        if left > 0:
            return f"{failed}; no branch is sent for {left:.0f} s more"
        return f"{failed}; one branch is trying it now" if self._probing else None
