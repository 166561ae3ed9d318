"""`langgraph-shadow check`: find the breaks in a recorded run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from langgraph_shadow.alignment.render_server import ServerRenderer
from langgraph_shadow.errors import ServerConfigError, TraceFormatError
from langgraph_shadow.server.client import ServerClient
from langgraph_shadow.server.served import read_metrics, served_models
from langgraph_shadow.traces.html import page
from langgraph_shadow.traces.recording import Recording, read_recording
from langgraph_shadow.traces.summary import Analysis, analyse

if TYPE_CHECKING:
    from langgraph_shadow.alignment.render import Prompt, Rendering
    from langgraph_shadow.traces.breaks import TracedBreak

UNKNOWN = 3
"""The exit code when no break was found, but some prompts are unknown."""


def check(
    file: Annotated[
        Path,
        typer.Argument(
            help="Request bodies, a LangSmith export, OpenTelemetry spans or a chat-completions "
            "log, as JSON lines or JSON.",
            metavar="FILE",
        ),
    ],
    base_url: Annotated[
        str | None, typer.Option(help="A vLLM server whose /tokenize counts the lost tokens.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the timeline there.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the requests of a recorded run that do not extend the one before them.

    Exit code 0: none; 1: there are some; 2: the file or the server cannot be read; 3: none, but
    some prompts are not in the file, so that it cannot be said.
    """
    try:
        found = asyncio.run(_analyse(read_recording(file), base_url))
    except (TraceFormatError, ServerConfigError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if html is not None:
        try:
            html.write_text(page(found, title=file.name), encoding="utf-8", errors="replace")
        except OSError as error:
            typer.echo(f"error: {html} cannot be written: {error.strerror}", err=True)
            raise typer.Exit(2) from error
    unpriced = sum(b.report.lost_tokens is None for b in found.breaks)
    if base_url is not None and unpriced:
        typer.echo(f"note: {unpriced} breaks could not be counted in tokens there", err=True)
    if as_json:
        typer.echo(json.dumps(found.row(), indent=2))
    else:
        _show(found)
    if found.breaks or found.unknown:
        raise typer.Exit(1 if found.breaks else UNKNOWN)


async def _analyse(recording: Recording, base_url: str | None) -> Analysis:
    if base_url is None:
        return await analyse(recording)
    async with ServerClient(base_url) as server:
        block_size = (await read_metrics(server)).block_size or 1
        served = [model.name for model in await served_models(server)]
        renderer = _ServedRenderer(server, served)
        return await analyse(recording, renderer=renderer, block_size=block_size)


class _ServedRenderer(ServerRenderer):
    """Renders with the server's own model when a recorded one is not served there."""

    def __init__(self, server: ServerClient, served: list[str]) -> None:
        super().__init__(server.post, model=served[0])
        self._served = served

    async def render(self, prompt: Prompt) -> Rendering:
        model = prompt.model if prompt.model in self._served else self.model
        return await super().render(replace(prompt, model=model))


def _show(found: Analysis) -> None:
    console = Console()
    if found.breaks:
        console.print(_table(found.breaks, len(found.steps)))
        for kind, repair in {b.report.kind: b.report.repair for b in found.breaks}.items():
            console.print(f"{kind}: {repair}", highlight=False)
    else:
        console.print(f"{len(found.steps)} requests, no break.")
    for line in _summary(found):
        console.print(line, highlight=False)
    for reason in dict.fromkeys(u.reason for u in found.unknown):
        lines = [str(u.line) for u in found.unknown if u.reason == reason]
        shown = ", ".join(lines[:8]) + (" …" if len(lines) > 8 else "")
        console.print(f"unknown: {len(lines)} requests (line {shown}): {reason}", highlight=False)


def _summary(found: Analysis) -> list[str]:
    """Nothing when a run has no second request: then there is nothing that could be reused."""
    summary = found.summary
    if summary.reusable_share is None or len(found.steps) == len(found.lines):
        return []
    prompts = "" if summary.prompt_tokens is None else f" of {summary.prompt_tokens} prompt tokens"
    said = [f"reusable: {summary.reusable_share:.0%}{prompts}"]
    if summary.reused_share is not None:
        said.append(f"reused, as the server counted: {summary.reused_share:.0%}")
    if summary.lost_tokens:
        about = "about " if any(b.report.lost_tokens is None for b in found.breaks) else ""
        said.append(f"computed again because of breaks: {about}{summary.lost_tokens} tokens")
    return said


def _table(breaks: list[TracedBreak], requests: int) -> Table:
    table = Table(title=f"{requests} requests, {len(breaks)} that break the prefix")
    columns: dict[str, list[str]] = {
        "line": [str(b.request.line) for b in breaks],
        "thread": [b.report.key.thread for b in breaks],
        "node": [b.report.key.node for b in breaks],
        "kind": [b.report.kind for b in breaks],
        "where": [f"{b.report.path}, character {b.report.offset}" for b in breaks],
        "lost": [b.cost for b in breaks],
        "cached": [b.cached for b in breaks],
        "change": [f"{b.report.before!r} became {b.report.after!r}" for b in breaks],
    }
    filled = {head: cells for head, cells in columns.items() if any(cells)}
    for head in filled:
        table.add_column(head, overflow="fold", ratio=1 if head == "change" else None)
    for cells in zip(*filled.values(), strict=True):
        # As `Text`, because what was recorded may look like rich's markup.
        table.add_row(*(Text(cell.encode("utf-8", "replace").decode()) for cell in cells))
    return table
