"""`langgraph-shadow doctor`: is this server set up so that shadows are cheap?"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.client import KEY_VARIABLE
from langgraph_shadow.server.doctor import examine

if TYPE_CHECKING:
    from langgraph_shadow.server.findings import Examination

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}


def doctor(
    url: Annotated[str, typer.Argument(help="A vLLM server, with or without /v1.", metavar="URL")],
    model: Annotated[
        str | None, typer.Option(help="The served model's name; the first one by default.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="The server's API key.", envvar=KEY_VARIABLE)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Examine a vLLM server, and say what to change so that shadows are cheap.

    Exit code 0: nothing failed; 1: something did.
    """
    try:
        found = asyncio.run(examine(url, model=model, api_key=api_key))
    except ServerConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(found.row(), ensure_ascii=False, indent=2))
    else:
        _show(found)
    if not found.ok:
        raise typer.Exit(1)


def _show(found: Examination) -> None:
    table = Table(title=found.url)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found, and what to change", overflow="fold", ratio=1)
    for finding in found.findings:
        said = Text(finding.detail)
        if finding.change:
            said.append(f"\n{finding.change}", style="italic")
        status = Text(finding.status, style=_STYLES[finding.status])
        table.add_row(Text(finding.check), status, said)
    Console().print(table)
