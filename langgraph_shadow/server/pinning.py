"""Keeps a running server on one core, wherever it has put its own threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def pin(pid: int, core: str) -> None:
    """Moves every thread of a process and of its children to a core; new ones stay there too.

    Args:
        pid: The process.
        core: The core's number; nothing is done where it is none (`auto`).
    """
    if not core.isdecimal():
        return
    for thread in list(threads(pid)):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread, {int(core)})


def threads(pid: int) -> Iterator[int]:
    """The threads of a process and of its children."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in (_PROC / str(pid) / "task").iterdir():
            yield int(task.name)
            for child in (task / "children").read_text(encoding="utf-8").split():
                yield from threads(int(child))
