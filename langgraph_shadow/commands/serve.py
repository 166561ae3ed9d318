"""`langgraph-shadow serve`: a local vLLM server on the CPU, until Ctrl-C."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated, Never

import typer

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.local import LocalServer
from langgraph_shadow.server.progress import TerminalProgress

if TYPE_CHECKING:
    from types import FrameType

_WATCH_S = 0.5


def serve(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Option(help="smollm2, tiny (random weights, for tests) or a model folder.")
    ] = "smollm2",
    port: Annotated[int | None, typer.Option(help="Loopback port; a free one by default.")] = None,
    cpus: Annotated[
        str | None, typer.Option(help="Cores for vLLM's threads, such as 0 or 0-3.")
    ] = None,
) -> None:
    """Start a local vLLM server on the CPU; any other flag goes to vLLM."""
    server = LocalServer(
        model, port=port, cpus=cpus, extra_args=ctx.args, progress=TerminalProgress()
    )
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        with server:
            typer.echo(f"{server.base_url}  model={server.model}  log={server.log_path}")
            typer.echo(
                f"ChatOpenAI(base_url={server.base_url!r}, model={server.model!r}, api_key='-')"
            )
            typer.echo("Ctrl-C stops the server.", err=True)
            while server.running:
                time.sleep(_WATCH_S)
        typer.echo(f"vLLM ended by itself; its log is {server.log_path}", err=True)
        raise typer.Exit(1)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from None
    except ServerConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _as_ctrl_c(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt
