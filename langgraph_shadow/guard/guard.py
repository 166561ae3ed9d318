"""The guard: compares each trunk with the line it belongs to, before the request leaves."""

from __future__ import annotations

import logging
import pickle
import threading
import zlib
from collections import OrderedDict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from langgraph_shadow.errors import PrefixMutationError
from langgraph_shadow.guard.fields import FieldRules
from langgraph_shadow.guard.line import Line
from langgraph_shadow.guard.report import GuardMode, Kind, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from langgraph_shadow.trunk.model import Trunk, TrunkKey

_log = logging.getLogger("langgraph_shadow.guard")

_MAX_LINES = 256
"""Lines remembered per thread; sub-agents have one namespace, hence one line, per run."""
_MAX_RESTING_LINES = 8
_MAX_FOLDED = 24_000
"""Bytes of a folded thread; a longer history (about 75 kB of text) keeps fingerprints only."""
_MAX_MODELS = 64
_MAX_EXPECTED = 16


class _Thread:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lines: OrderedDict[TrunkKey, Line] = OrderedDict()
        self.expected: deque[str] = deque(maxlen=_MAX_EXPECTED)
        self.warned: set[Kind] = set()
        self._folded = b""

    def rest(self) -> None:
        """Fold the newest lines until the next call: a thread at rest costs little."""
        self.wake()
        while len(self.lines) > _MAX_RESTING_LINES:
            self.lines.popitem(last=False)
        self._folded = _fold(self.lines)
        if len(self._folded) > _MAX_FOLDED:
            for line in self.lines.values():
                line.strip()
            self._folded = _fold(self.lines)
        self.lines = OrderedDict()

    def wake(self) -> None:
        """Unfold the lines; nothing to do when they are."""
        if self._folded:
            self.lines = pickle.loads(zlib.decompress(self._folded))
            self._folded = b""

    def line(self, key: TrunkKey) -> Line:
        self.wake()
        line = self.lines.setdefault(key, Line())
        self.lines.move_to_end(key)
        while len(self.lines) > _MAX_LINES:
            self.lines.popitem(last=False)
        return line


def _fold(lines: OrderedDict[TrunkKey, Line]) -> bytes:
    # level 1 is as small as the default within a few percent, and several times as fast
    return zlib.compress(pickle.dumps(lines), 1)


class Guard:
    """Finds breaks before they are sent. Thread-safe; no I/O.

    Keeps, per line, the newest trunk (by reference) and fingerprints of those before it; the
    least recently used threads are forgotten first.
    """

    def __init__(
        self,
        *,
        mode: GuardMode = "warn",
        on_report: Callable[[Report], None] | None = None,
        max_threads: int = 1024,
    ) -> None:
        """Make a guard.

        Args:
            mode: What to do about a break; see `GuardMode`.
            on_report: Called with every report, announced breaks included. What it raises is
                logged and goes no further.
            max_threads: Threads to remember.

        Raises:
            ValueError: The mode is not a `GuardMode`.
        """
        if mode not in get_args(GuardMode):
            msg = f"unknown guard mode {mode!r}; use one of {', '.join(get_args(GuardMode))}"
            raise ValueError(msg)
        self.mode: GuardMode = mode
        self._on_report = on_report
        self._max_threads = max(1, max_threads)
        self._threads: OrderedDict[str, _Thread] = OrderedDict()
        self._rules: OrderedDict[str, FieldRules] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, trunk: Trunk, *, silent: bool = False) -> Report | None:
        """Compare a trunk with its line, and record it as the line's newest.

        Costs O(new messages) when the trunk is appended. A trunk that is vetoed was not sent, so
        it is not recorded.

        Args:
            trunk: What is about to be sent.
            silent: Leave a break that passes to a later `announce`, when it has been priced.

        Returns:
            The break, or None.

        Raises:
            PrefixMutationError: In mode `reject`, for a break that was not announced.
        """
        if self.mode == "off":
            return None
        try:
            report = self._judge(trunk)
        except Exception:
            _log.exception("the guard failed and let the request pass")
            return None
        if report is None:
            return None
        vetoed = self.mode == "reject" and report.expected is None
        if vetoed or not silent:
            self.announce(report)
        if vetoed:
            raise PrefixMutationError(report)
        return report

    def announce(self, report: Report) -> None:
        """Tell of a break: `on_report`, and one log line per kind and thread."""
        self._tell(report)
        if report.expected is not None or self.mode not in ("warn", "repair"):
            return
        state = self._thread(report.key.thread)
        with state.lock:
            first = report.kind not in state.warned
            state.warned.add(report.kind)
        if first:
            _log.warning("%s", report.message())

    def newest(self, key: TrunkKey) -> Trunk | None:
        """The newest trunk of a line, with which the next one will be compared."""
        state = self._thread(key.thread)
        with state.lock:
            state.wake()
            line = state.lines.get(key)
            return line.newest if line is not None else None

    def rest(self, thread: str) -> None:
        """Fold what is remembered about a thread, whose run is over, until its next call.

        Takes milliseconds for a long history, so it is called in the background.
        """
        with self._lock:
            state = self._threads.get(thread)
        if state is None:
            return
        with state.lock:
            try:
                state.rest()
            except Exception as error:  # something in a message cannot be pickled: keep it as it is
                _log.debug("a thread was not folded: %r", error)

    def expect_break(self, thread: str, reason: str) -> None:
        """Announce the next break of a thread: it is recorded with `reason` and let pass."""
        state = self._thread(thread)
        with state.lock:
            state.expected.append(reason)

    def forget(self, thread: str) -> None:
        """Drop everything remembered about a thread."""
        with self._lock:
            self._threads.pop(thread, None)

    def learn(self, model: str, rules: FieldRules) -> None:
        """Use what `probe_fields` found out about a model's template from now on."""
        with self._lock:
            self._rules[model] = rules
            self._rules.move_to_end(model)
            while len(self._rules) > _MAX_MODELS:
                self._rules.popitem(last=False)

    def _judge(self, trunk: Trunk) -> Report | None:
        state = self._thread(trunk.key.thread)
        rules = self._rules.get(trunk.model) or FieldRules()
        with state.lock:
            line = state.line(trunk.key)
            report = line.judge(trunk, rules)
            if report is not None and state.expected:
                report = replace(report, expected=state.expected.popleft())
            vetoed = self.mode == "reject" and report is not None and report.expected is None
            if not vetoed:
                line.record(trunk)
        return report

    def _thread(self, thread: str) -> _Thread:
        with self._lock:
            state = self._threads.setdefault(thread, _Thread())
            self._threads.move_to_end(thread)
            while len(self._threads) > self._max_threads:
                self._threads.popitem(last=False)
        return state

    def _tell(self, report: Report) -> None:
        if self._on_report is None:
            return
        try:
            self._on_report(report)
        except Exception:
            _log.exception("the guard's on_report failed")
