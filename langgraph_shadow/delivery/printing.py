"""Tables as text and as HTML, alike for everything that shows itself as one."""

from __future__ import annotations

import html
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table


def printed(table: Table, *, width: int) -> str:
    """A table as text of so many characters a line."""
    console = Console(width=width, record=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def html_table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as HTML; every text is escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
