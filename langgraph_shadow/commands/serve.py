"""`langgraph-shadow serve`: local vLLM servers on the CPU, until Ctrl-C."""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Never, Protocol

import typer

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.cluster import Replicas
from langgraph_shadow.server.local import LocalServer
from langgraph_shadow.server.pair import PrefillDecode
from langgraph_shadow.server.progress import TerminalProgress

if TYPE_CHECKING:
    from types import FrameType

_WATCH_S = 0.5


class _Served(Protocol):
    """One server or several behind one address."""

    @property
    def base_url(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def running(self) -> bool: ...


def serve(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Option(help="smollm2, tiny (random weights, for tests) or a model folder.")
    ] = "smollm2",
    port: Annotated[int | None, typer.Option(help="Loopback port; a free one by default.")] = None,
    cpus: Annotated[
        str | None, typer.Option(help="Cores for vLLM's threads, such as 0 or 0-3.")
    ] = None,
    replicas: Annotated[
        int, typer.Option(min=1, help="Servers on cores of their own, behind vllm-router.")
    ] = 1,
    pd: Annotated[
        bool, typer.Option("--pd", help="A prefill and a decode server that share KV both ways.")
    ] = False,
) -> None:
    """Start a local vLLM server on the CPU, or several; any other flag goes to vLLM."""
    progress = TerminalProgress()
    if (pd or replicas > 1) and cpus is not None:
        msg = "--cpus is for one server; several are pinned to cores of their own"
        raise typer.BadParameter(msg)
    if pd and replicas > 1:
        msg = "--pd starts one server of each kind; it goes without --replicas"
        raise typer.BadParameter(msg)
    if pd:
        pair = PrefillDecode(model, port=port, extra_args=ctx.args, progress=progress)
        proxy = " ".join(pair.proxy_args)
        parts = {"prefill": pair.prefill, "decode": pair.decode}
        lines = [*_where(parts), f"router log={pair.router.log_path}", str(pair.transfer)]
        _run(pair, pair, [*lines, f"for KV return: python examples/pd_proxy.py {proxy}"])
    if replicas > 1:
        cluster = Replicas(model, count=replicas, port=port, extra_args=ctx.args, progress=progress)
        parts = {f"replica {i}": s for i, s in enumerate(cluster.servers, 1)}
        _run(cluster, cluster, [*_where(parts), f"router log={cluster.router.log_path}"])
    server = LocalServer(model, port=port, cpus=cpus, extra_args=ctx.args, progress=progress)
    _run(server, server, [f"log={server.log_path}"])


def _run(block: AbstractContextManager[object], served: _Served, lines: list[str]) -> Never:
    """Serve until Ctrl-C or until what serves has ended."""
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        with block:
            base_url, model = served.base_url, served.model
            typer.echo("  ".join([base_url, f"model={model}", *lines[:1]]))
            typer.echo(f"ChatOpenAI(base_url={base_url!r}, model={model!r}, api_key='-')")
            for line in lines[1:]:
                typer.echo(line)
            typer.echo("Ctrl-C stops the server.", err=True)
            while served.running:
                time.sleep(_WATCH_S)
        typer.echo(f"vLLM ended by itself; {lines[0]}", err=True)
        raise typer.Exit(1)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from None
    except ServerConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _where(servers: dict[str, LocalServer]) -> list[str]:
    return [f"{name}: {server.root_url} log={server.log_path}" for name, server in servers.items()]


def _as_ctrl_c(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt
