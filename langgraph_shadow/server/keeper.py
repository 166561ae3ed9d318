"""Keeps a server only as long as its owner lives; run as a process of its own.

Usage: `python keeper.py LOG_FILE COMMAND…`, as the leader of a new session.

The owner holds the other end of standard input. When that end closes, whether by a clean stop, an
exception, a SIGTERM or a SIGKILL of the owner, the keeper ends the whole process group: vLLM's
engine and workers are processes too, and would outlive their parent. Two lines go to standard
output: the server's pid, and, when the server ends by itself, its exit status.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

GRACE_S = 10.0
POLL_S = 0.2


def main(log: str, command: list[str]) -> None:
    """Starts the command, waits for it or for the owner's end, and leaves nothing behind."""
    asked_to_stop = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    with Path(log).open("ab") as sink:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    _tell(server.pid)
    while server.poll() is None and not asked_to_stop:
        if select.select([sys.stdin], [], [], POLL_S)[0]:
            break
    if server.returncode is not None:
        _tell(server.returncode)
    os.killpg(0, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _tell(number: int) -> None:
    # The owner may be gone already; that must not keep the group alive.
    with contextlib.suppress(OSError):
        os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
