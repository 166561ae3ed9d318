"""What a person sees while the demo runs: the agent on the left, its shadow on the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.messages import BaseMessage
    from rich.console import Console

    from langgraph_shadow.delivery.ledger import LedgerRow

TWO_COLUMNS = 100
"""Terminals narrower than this get one column."""

MARGIN = 12
"""Characters of a line that are not the text: who said it, and the gap between the columns."""


def one_line(text: str, characters: int = 100) -> str:
    """The text on one line, cut after so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"


def _said(who: str, text: str, style: str) -> Text:
    return Text.assemble((f"{who:<6} ▸ ", style), (text, style))


class Screen:
    """Prints the run line by line.

    Attributes:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._plain = not console.is_terminal
        self._wide = console.is_terminal and console.width >= TWO_COLUMNS
        columns = 2 if self._wide else 1
        self._space = 160 if self._plain else console.width // columns - MARGIN

    def note(self, text: str) -> None:
        """Something about the demo itself."""
        self.console.print(Text(text, style="dim"), soft_wrap=self._plain)

    def question(self, text: str) -> None:
        """The person's question, and the heads of the two columns."""
        self.console.print()
        self.console.print(_said("you", text, "bold"))
        if self._wide:
            self._row(Text("the agent", style="dim"), Text("its shadow", style="dim"))

    def message(self, message: BaseMessage) -> None:
        """A message that entered the agent's state, but for the answer."""
        for call in getattr(message, "tool_calls", ()):
            arguments = ", ".join(f"{name}={value!r}" for name, value in call["args"].items())
            self._row(_said("agent", f"{call['name']}({arguments})", "cyan"), Text())
        if message.type == "tool":
            self._row(_said("tools", one_line(message.text, self._space), "dim"), Text())

    def update(self, text: str, lag_ms: float | None) -> None:
        """A sentence from a shadow branch, which never enters the agent's state."""
        line = Text("shadow ▸ ", style="bold magenta")
        line.append(text, style="magenta")
        if lag_ms is not None:
            line.append(f"  {lag_ms / 1000:.1f} s", style="dim")
        self._row(Text(), line)

    def answer(self, text: str) -> None:
        """The agent's answer."""
        self.console.print()
        self.console.print(_said("answer", text, "bold green"), soft_wrap=self._plain)

    def ledger(self, rows: Sequence[LedgerRow]) -> None:
        """The proof: one line per branch. The sentences were shown before, and are left out."""
        table = Table(title="Shadow ledger", title_justify="left", box=None, pad_edge=False)
        for name in ("branch", "carrier", "verdict"):
            table.add_column(name, no_wrap=True)
        for name in ("prompt", "kept", "predicted", "cached", "ttft\nms", "lag\nms"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            numbers = (
                row.prompt_tokens,
                row.kept,
                row.predicted,
                row.cached,
                row.ttft_ms,
                row.lag_ms,
            )
            shown = ["?" if number is None else f"{number:.0f}" for number in numbers]
            table.add_row(row.branch, row.carrier, row.verdict, *shown)
        self.console.print("", table, "", sep="\n")
        for row in rows:
            if row.verdict in ("failed", "shed"):
                self.note(f"{row.branch} {row.verdict}: {one_line(row.reason, 200)}")

    def _row(self, left: Text, right: Text) -> None:
        if not self._wide:
            self.console.print(left or right, soft_wrap=self._plain)
            return
        table = Table.grid(expand=True)
        table.add_column(ratio=1)
        table.add_column(ratio=1)
        table.add_row(Padding(left, (0, 2, 0, 0)), right)
        self.console.print(table)
