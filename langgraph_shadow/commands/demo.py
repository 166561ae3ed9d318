"""`langgraph-shadow demo`: a research agent and its shadow, and the proof of what it cost."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated
from uuid import uuid4

import openai
import typer
from rich.console import Console

from langgraph_shadow.demo.agent import chat_model
from langgraph_shadow.demo.connect import block_size, find_model
from langgraph_shadow.demo.run import run_demo
from langgraph_shadow.demo.screen import Screen
from langgraph_shadow.demo.tools import docs
from langgraph_shadow.errors import ServerConfigError, ShadowError
from langgraph_shadow.server.local import LocalServer
from langgraph_shadow.server.models import EMBEDDED_MODELS
from langgraph_shadow.server.progress import TerminalProgress

QUESTION = "How do I choose random elements from a list?"

CONSTRAINED = (
    "The model is too small to write tool calls of its own: which call comes next is chosen by "
    "constrained decoding. The words it writes are its own, mistakes included."
)


class Guard(StrEnum):
    """The guard's modes, as the command line knows them."""

    off = "off"
    observe = "observe"
    warn = "warn"
    reject = "reject"
    repair = "repair"


def _not_blank(value: str) -> str:
    if not value.strip():
        msg = "it is empty"
        raise typer.BadParameter(msg)
    return value


def demo(
    question: Annotated[
        str, typer.Option(help="About Python's standard library.", callback=_not_blank)
    ] = QUESTION,
    language: Annotated[
        str, typer.Option(help="Language of the updates.", callback=_not_blank)
    ] = "English",
    guard: Annotated[Guard, typer.Option(help="What to do about a broken prefix.")] = Guard.warn,
    base_url: Annotated[
        str | None,
        typer.Option(help="A running vLLM, http://HOST:PORT/v1; else a local one is started."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The served model's name; the first one by default.")
    ] = None,
    constrained: Annotated[
        bool | None,
        typer.Option(
            "--constrained/--native",
            help="Choose tool calls by constrained decoding, or leave them to the model; "
            "constrained for the embedded models only, by default.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a research agent with shadow branches on a real model, and show what they cost."""
    console = Console(stderr=as_json)
    screen = Screen(console)
    try:
        with ExitStack() as stack:
            if base_url is None:
                progress = TerminalProgress(Console(stderr=True))
                server = stack.enter_context(LocalServer(model or "smollm2", progress=progress))
                address, name = server.base_url, server.model
            else:
                address, name = find_model(base_url, model)
            constrain = name in EMBEDDED_MODELS if constrained is None else constrained
            screen.note(f"{len(docs())} entries of Python's standard library; {name} at {address}")
            if constrain:
                screen.note(CONSTRAINED)
            if name in EMBEDDED_MODELS and language.strip().lower() != "english":
                screen.note(f"It was trained on English: for {language}, give it a larger model.")
            size = block_size(address)
            # A salt of its own, lest an earlier run of the same question count as a cache hit.
            salt = uuid4().hex if size else None
            report = asyncio.run(
                run_demo(
                    chat_model(address, name, cache_salt=salt),
                    question,
                    screen,
                    language=language,
                    guard=guard.value,
                    constrain=constrain,
                    block_size=size,
                )
            )
    except ServerConfigError as error:
        _fail(str(error), 2)
    except ShadowError as error:
        _fail(str(error), 1)
    except openai.APIError as error:
        _fail(f"The model server failed during the run: {error}", 1)
    console.print(report.summary(), highlight=False, soft_wrap=not console.is_terminal)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))


def _fail(problem: str, code: int) -> None:
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(code)
