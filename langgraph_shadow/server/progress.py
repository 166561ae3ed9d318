"""How the start of a server is shown to a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rich.console import Console

if TYPE_CHECKING:
    from rich.status import Status

Stage = Literal["building the model folder", "starting vLLM", "ready", "failed"]
Progress = Callable[[Stage, float], None]


def silent(stage: Stage, seconds: float) -> None:
    """Shows nothing."""


class TerminalProgress:
    """Shows the stages on standard error: a live line on a terminal, else one line per stage."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._status: Status | None = None
        self._shown: Stage | None = None

    def __call__(self, stage: Stage, seconds: float) -> None:
        """Shows a stage; called as often as the caller likes.

        Args:
            stage: What the server is doing.
            seconds: Seconds since the start.
        """
        ended = stage in ("ready", "failed")
        if self._console.is_terminal and not ended:
            self._live(f"{stage} … {seconds:.0f} s")
        elif stage != self._shown:
            if self._status is not None:
                self._status.stop()
                self._status = None
            self._console.print(f"server: {stage}" + (f" after {seconds:.0f} s" if ended else " …"))
        self._shown = stage

    def _live(self, line: str) -> None:
        if self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        self._status.update(line)
