"""`langgraph-shadow roles`: what reusing another agent's KV cache costs, on one's own roles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from langgraph_shadow.bench.report import table_of
from langgraph_shadow.errors import ShadowError

if TYPE_CHECKING:
    from langgraph_shadow.bench.report import Report

EMBEDDED = "smollm2"


def roles(
    roles_file: Annotated[
        Path,
        typer.Option("--roles", help='JSON: {"agent": "role prompt", …}, in working order.'),
    ],
    contexts: Annotated[
        list[Path],
        typer.Option("--contexts", help="A text that all agents read; more may follow it."),
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(help="More contexts.", metavar="[FILE…]")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A Hugging Face model folder, or smollm2, the embedded one.")
    ] = EMBEDDED,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens taken of each context.")] = 512,
    continuation: Annotated[
        int, typer.Option(min=1, help="Tokens after them, over which predictions are compared.")
    ] = 64,
    question: Annotated[
        str | None, typer.Option(help="Compare also over the agents' answers to this.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Precision of weights and caches.")
    ] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how well agents with different role prompts could share a context's KV cache.

    Exit code 0: measured; 2: a file, the model or a package cannot be used.
    """
    try:
        report = _run(
            model,
            roles_file,
            [*contexts, *(more or ())],
            tokens=tokens,
            continuation=continuation,
            question=question,
            device=device,
            dtype=dtype,
        )
    except ShadowError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(report.text())
    else:
        _show(report)


def _run(
    model: str,
    roles_file: Path,
    contexts: list[Path],
    *,
    tokens: int,
    continuation: int,
    question: str | None,
    device: str,
    dtype: Literal["float32", "bfloat16"],
) -> Report:
    # Imported here: torch takes seconds, and may not be installed.
    from langgraph_shadow.correction.model import hide_progress
    from langgraph_shadow.correction.report import run
    from langgraph_shadow.server.models import smollm2_folder

    hide_progress()
    return run(
        smollm2_folder() if model == EMBEDDED else Path(model),
        roles_file,
        contexts,
        tokens=tokens,
        continuation=continuation,
        question=question,
        device=device,
        dtype=dtype,
        say=lambda line: typer.echo(line, err=True),
    )


def _show(report: Report) -> None:
    from langgraph_shadow.correction.table import (
        COST_COLUMNS,
        HOP_COLUMNS,
        SPECTRUM_COLUMNS,
        chain_columns,
    )

    console = Console()
    agents = list(report.settings["role_tokens"])
    of = {part: [row for row in report.rows if row["part"] == part] for part in _PARTS}
    console.print(table_of(f"{agents[0]} → {agents[1]}", of["hop"], HOP_COLUMNS))
    costly = [row for row in of["hop"] if "copy_mib" in row]
    console.print(table_of("What it costs", costly, COST_COLUMNS))
    if len(agents) > 2:
        console.print(table_of("Along the chain", of["chain"], chain_columns(len(agents))))
    console.print(table_of("The difference", of["difference"], SPECTRUM_COLUMNS))
    for note in report.notes:
        console.print(note, highlight=False, markup=False)


_PARTS = ("hop", "chain", "difference")
