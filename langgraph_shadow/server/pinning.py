"""The cores that servers are pinned to, and keeping a running server's engine on one of them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def cores_of_servers() -> list[str]:
    """Names of the cores that servers are pinned to, the last one first."""
    if sys.platform != "linux":
        return ["auto"]
    return [str(core) for core in sorted(os.sched_getaffinity(0), reverse=True)]


def pin_children(pid: int, core: int) -> None:
    """Moves every thread of a process's children to a core; new ones stay there too."""
    for thread in list(threads(pid)):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread, {core})


def threads(pid: int) -> Iterator[int]:
    """The threads of a process's children, and of theirs."""
    for task in _tasks(pid):
        for child in _children(task):
            yield from (int(thread.name) for thread in _tasks(child))
            yield from threads(child)


def _tasks(pid: int) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return list((_PROC / str(pid) / "task").iterdir())
    return []


def _children(task: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in (task / "children").read_text(encoding="utf-8").split()]
    return []
