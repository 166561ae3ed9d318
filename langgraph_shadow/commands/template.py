"""`langgraph-shadow template`: what a chat template does to branches."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from langgraph_shadow.alignment.render import RendererUnavailableError
from langgraph_shadow.alignment.render_server import ServerRenderer
from langgraph_shadow.alignment.survey import Surveyed, file_survey, survey
from langgraph_shadow.errors import AlignmentError

_BAD_REQUEST = 400


def template(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Chat templates.", metavar="FILE.jinja…")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Ask a live vLLM server about its own template instead.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Served model to ask for; the server's first by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Show which carrier keeps the trunk under a chat template.

    Exit code 0: every template is usable and kept; 1: one is not; 2: a file or the server could not
    be read.
    """
    if bool(files) == bool(base_url):
        typer.echo("error: give template files, or --base-url, and not both", err=True)
        raise typer.Exit(2)
    rows: list[Surveyed] = []
    unread = False
    try:
        if base_url:
            rows = [asyncio.run(_ask(base_url.rstrip("/").removesuffix("/v1"), model))]
    except AlignmentError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    for path in files or ():
        try:
            rows.append(asyncio.run(file_survey(path)))
        except AlignmentError as error:
            rows.append(Surveyed(template=str(path), usable=False, reason=error.reason))
            unread = True
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], ensure_ascii=False, indent=2))
    else:
        _show(rows)
    if unread:
        raise typer.Exit(2)
    if not all(row.kept_through_last_tool_result for row in rows):
        raise typer.Exit(1)


async def _ask(root_url: str, model: str | None) -> Surveyed:
    async with httpx.AsyncClient(base_url=root_url, timeout=30) as http:

        async def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
            try:
                response = await http.request(method, path, json=body)
                answer = response.json()
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                msg = f"{root_url}{path} cannot be read: {error!r}. Is it a vLLM server?"
                raise RendererUnavailableError(msg) from error
            if response.status_code == _BAD_REQUEST:
                msg = f"the server refused the prompt: {' '.join(str(answer).split())[:300]}"
                raise AlignmentError(msg)
            if response.is_error:
                msg = (
                    f"{root_url}{path} answered {response.status_code}; a vLLM server that serves "
                    f"{path} is needed"
                )
                raise RendererUnavailableError(msg)
            return answer

        async def post(path: str, body: dict[str, Any]) -> Any:
            return await call("POST", path, body)

        if model is None:
            served = await call("GET", "/v1/models")
            try:
                model = str(served["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                msg = f"{root_url}/v1/models lists no model; name one with --model"
                raise RendererUnavailableError(msg) from error
        renderer = ServerRenderer(post, model=model)
        return await survey(model, lambda _: renderer, model=model)


def _show(rows: list[Surveyed]) -> None:
    table = Table(title="chat templates")
    table.add_column("template", overflow="fold")
    for head in ("carrier", "kept", "loop", "turns", "knob"):
        table.add_column(head, no_wrap=True)
    for row in rows:
        table.add_row(
            row.template,
            (row.carrier or "none") if row.usable else "not usable",
            "-" if row.kept_share is None else f"{row.kept_share:.1%}",
            _mark(row.stable_in_loop),
            _mark(row.stable_across_turns),
            row.knob or "-",
        )
    Console().print(table)
    for row in rows:
        if row.reason:
            typer.echo(f"{row.template}: {row.reason}")


def _mark(stable: bool | None) -> str:
    return "-" if stable is None else "stable" if stable else "breaks"
