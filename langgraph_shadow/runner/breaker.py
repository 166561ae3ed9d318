"""The circuit breaker: a server that keeps failing is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

LONGEST_COOL_DOWN = 300.0
"""Seconds; the cool-down doubles with every failed probe, up to this."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The breaker's answer to a branch that wants to leave.

    Attributes:
        reason: Why it must stay; empty when it may go.
        probe: Whether it is the one branch that tries a server again.
    """

    reason: str = ""
    probe: bool = False


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

    def admit(self) -> Admission:
        """Ask to send one branch; one that goes owes a `record`."""
        with self._lock:
            reason = self._reason()
            if reason is not None:
                return Admission(reason)
            self._probing = self._open_until is not None
            return Admission(probe=self._probing)

    def record(self, admission: Admission, *, healthy: bool | None) -> None:
        """What an admitted branch learned of the server: fine, failing, or (None) nothing."""
        with self._lock:
            if admission.probe:
                self._probing = False
            if healthy:
                self._failures, self._open_until = 0, None
                self._cool_down = self._first_cool_down
            elif healthy is False:
                self._failed(probe=admission.probe)

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
