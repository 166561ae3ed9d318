"""A helper process that ends when the block or the owning process ends, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEEPER = Path(__file__).resolve().with_name("keeper.py")
_STOP_S = 20.0


class Kept:
    """One process, held by a keeper.

    Attributes:
        log_path: Everything that it prints.
        pid: Its process id; 0 before the start.
    """

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        """Describes the process; nothing is started yet."""
        self._command = tuple(command)
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
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline() or 0)

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
