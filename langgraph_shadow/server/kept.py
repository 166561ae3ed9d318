"""A helper process that ends when the block or the owning process ends, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KEEPER = Path(__file__).resolve().with_name("keeper.py")
_STOP_S = 20.0


class Kept:
    """One process, held by a keeper.

    Attributes:
        log_path: Everything that it prints.
        pid: Its process id; 0 before the start.
    """

    def __init__(
        self, command: Sequence[str], log_path: Path, *, env: Mapping[str, str] | None = None
    ) -> None:
        """Describes the process; nothing is started yet. It gets our environment, or `env`."""
        self._command = tuple(command)
        self._env = env
        self._keeper: subprocess.Popen[bytes] | None = None
        self.log_path = log_path
        self.pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._keeper is not None and self._keeper.poll() is None

    def start(self) -> None:
        """Starts it, with an empty log."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path.write_text("", encoding="utf-8")
        # `-I`: the keeper needs the standard library only, and must start whatever lies around.
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", str(_KEEPER), str(self.log_path), *self._command],
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._said() or 0

    def exit_status(self) -> int | None:
        """The exit status of a process that has ended by itself; told once."""
        return self._said()

    def kill(self) -> None:
        """Kills it with all its children at once, as a crash would."""
        if self._keeper is not None:
            os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait()
        self.stop()

    def stop(self) -> None:
        """Ends it with all its children; does nothing when it is not running."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        if keeper.stdin:
            keeper.stdin.close()  # the keeper takes this as the owner's end
        try:
            keeper.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(keeper.pid, signal.SIGKILL)
            keeper.wait()
        if keeper.stdout:
            keeper.stdout.close()

    def _said(self) -> int | None:
        """The next number that the keeper tells."""
        if self._keeper is None or self._keeper.stdout is None:
            return None
        line = self._keeper.stdout.readline().strip()
        return int(line) if line else None
