"""`langgraph-shadow check`: find the breaks in a recorded run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from langgraph_shadow.alignment.render import RendererUnavailableError
from langgraph_shadow.alignment.render_server import ServerRenderer
from langgraph_shadow.errors import AlignmentError, ServerConfigError, TraceFormatError
from langgraph_shadow.server.metrics import fetch_metrics
from langgraph_shadow.traces.breaks import TracedBreak, find_breaks
from langgraph_shadow.traces.reader import TracedRequest, read_requests

if TYPE_CHECKING:
    from langgraph_shadow.alignment.render import Prompt, Rendering

_BAD_REQUEST = 400


def check(
    file: Annotated[Path, typer.Argument(help="One request body per line.", metavar="FILE.jsonl")],
    base_url: Annotated[
        str | None, typer.Option(help="A vLLM server whose /tokenize counts the lost tokens.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the requests of a recorded run that do not extend the one before them.

    Exit code 0: none; 1: there are some; 2: the file or the server cannot be read.
    """
    try:
        requests = read_requests(file)
        breaks = asyncio.run(_find(requests, base_url))
    except (TraceFormatError, ServerConfigError, httpx.InvalidURL) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    unpriced = sum(found.report.lost_tokens is None for found in breaks)
    if base_url is not None and unpriced:
        typer.echo(f"note: {unpriced} breaks could not be counted in tokens there", err=True)
    if as_json:
        rows = [found.row() for found in breaks]
        report = {"requests": len(requests), "breaks": rows}
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(len(requests), breaks)
    if breaks:
        raise typer.Exit(1)


async def _find(requests: list[TracedRequest], base_url: str | None) -> list[TracedBreak]:
    if base_url is None:
        return await find_breaks(requests)
    root_url = base_url.rstrip("/").removesuffix("/v1")
    block_size = (await asyncio.to_thread(fetch_metrics, root_url)).block_size or 1
    async with httpx.AsyncClient(base_url=root_url, timeout=60) as http:
        served = await _served(http, root_url)
        renderer = _ServedRenderer(http, served)
        return await find_breaks(requests, renderer=renderer, block_size=block_size)


async def _served(http: httpx.AsyncClient, root_url: str) -> list[str]:
    try:
        names = [str(m["id"]) for m in (await http.get("/v1/models")).json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        problem, remedy = "The served models cannot be read", "Give the address of a vLLM server."
        raise ServerConfigError(problem, url=f"{root_url}/v1/models", remedy=remedy) from error
    if not names:
        problem, remedy = "The server serves no model", "Start it with a model."
        raise ServerConfigError(problem, url=root_url, remedy=remedy)
    return names


class _ServedRenderer(ServerRenderer):
    """Renders with the server's own model when a recorded one is not served there."""

    def __init__(self, http: httpx.AsyncClient, served: list[str]) -> None:
        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            try:
                response = await http.post(path, json=body)
                answer = response.json()
            except (httpx.HTTPError, ValueError) as error:
                msg = f"{path} cannot be used: {error!r}"
                raise RendererUnavailableError(msg) from error
            if response.status_code == _BAD_REQUEST:
                msg = f"the server refused the prompt: {str(answer)[:300]}"
                raise AlignmentError(msg)
            if response.is_error or not isinstance(answer, dict):
                msg = f"{path} answered {response.status_code}"
                raise RendererUnavailableError(msg)
            return answer

        super().__init__(post, model=served[0])
        self._served = served

    async def render(self, prompt: Prompt) -> Rendering:
        model = prompt.model if prompt.model in self._served else self.model
        return await super().render(replace(prompt, model=model))


def _show(requests: int, breaks: list[TracedBreak]) -> None:
    console = Console()
    if not breaks:
        console.print(f"{requests} requests, no break.")
        return
    table = Table(title=f"{requests} requests, {len(breaks)} that break the prefix")
    for head in ("line", "thread", "kind", "where", "lost"):
        table.add_column(head, overflow="fold")
    table.add_column("change", overflow="fold", ratio=1)
    for found in breaks:
        report = found.report
        lost = f"about {report.lost_share:.0%}"
        if report.lost_tokens is not None:
            lost = f"{report.lost_tokens} tokens"
        cells = (
            str(found.request.line),
            report.key.thread or "-",
            report.kind,
            f"{report.path}, character {report.offset}",
            lost,
            f"{report.before!r} became {report.after!r}",
        )
        # As `Text`, because what was recorded may look like rich's markup.
        table.add_row(*(Text(cell.encode("utf-8", "replace").decode()) for cell in cells))
    console.print(table)
    for kind, repair in {f.report.kind: f.report.repair for f in breaks}.items():
        console.print(f"{kind}: {repair}", highlight=False)
