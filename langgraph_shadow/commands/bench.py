"""`langgraph-shadow bench NAME`: what the project claims, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import httpx
import httpx2
import openai
import typer

from langgraph_shadow.bench.export import aiperf_lines, write_aiperf
from langgraph_shadow.bench.pd import PROXY
from langgraph_shadow.bench.report import Report
from langgraph_shadow.bench.runs import BenchRun
from langgraph_shadow.bench.specialists import AGENTS, CONTEXTS, THREADS
from langgraph_shadow.bench.trajectories import Trajectory, read_trajectories
from langgraph_shadow.branches.branch import user_update
from langgraph_shadow.errors import ServerConfigError, ShadowError, TraceFormatError

bench = typer.Typer(
    name="bench",
    help="Measure what this project claims, each time with all arms in one run.",
    no_args_is_help=True,
)

BaseUrl = Annotated[
    str | None,
    typer.Option(help="A running vLLM, http://HOST:PORT/v1; else a local one is started."),
]
Model = Annotated[str | None, typer.Option(help="The served model; the first one by default.")]
ServerModel = Annotated[
    str, typer.Option(help="What a local server serves: smollm2, tiny or a model folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Out = Annotated[Path, typer.Option(help="Folder for NAME.json and NAME.png.")]
Quick = Annotated[bool, typer.Option("--quick", help="The smallest sizes, to see it work.")]
Trace = Annotated[
    Path | None,
    typer.Option(help="Recorded conversations to replay: one JSON object with `messages` a line."),
]
Tools = Annotated[Path | None, typer.Option(help="Their tool schemas, a JSON list.")]
Conversations = Annotated[int, typer.Option(min=1, help="Recorded conversations to replay.")]
Constrained = Annotated[
    bool | None,
    typer.Option(
        "--constrained/--native",
        help="Choose the agent's tool calls by constrained decoding; for the embedded models "
        "only, by default.",
        show_default=False,
    ),
]
Templates = Annotated[
    Path | None, typer.Option(help="Folder of chat templates (*.jinja) to try beside the served.")
]
Minutes = Annotated[float, typer.Option(min=0, help="Loads are repeated until so much is spent.")]

OUT = Path("bench-results")


@bench.command()
def cost(
    base_url: BaseUrl = None,
    model: Model = None,
    server_model: ServerModel = "smollm2",
    trace: Trace = None,
    tools: Tools = None,
    conversations: Conversations = 4,
    constrained: Constrained = None,
    as_json: AsJson = False,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """Price of keeping a person informed: no shadow, aligned, tool-less, narrator, a tool."""
    run = BenchRun(base_url, model, server_model, as_json, out, quick)
    with _explained():
        run.cost(_recorded(trace, tools)[:conversations], constrained)


@bench.command()
def ttft(
    base_url: BaseUrl = None,
    model: Model = None,
    server_model: ServerModel = "smollm2",
    as_json: AsJson = False,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """Time to a branch's first token, aligned and unaligned, over the trunk's length."""
    with _explained():
        BenchRun(base_url, model, server_model, as_json, out, quick).ttft()


@bench.command()
def harm(
    base_url: BaseUrl = None,
    model: Model = None,
    server_model: ServerModel = "smollm2",
    minutes: Minutes = 15.0,
    as_json: AsJson = False,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """The orchestrator's own times beside shadows, under every launch mode and several loads."""
    with _explained():
        BenchRun(base_url, model, server_model, as_json, out, quick).harm(minutes)


@bench.command()
def specialists(
    base_url: BaseUrl = None,
    model: Model = None,
    server_model: ServerModel = "smollm2",
    agents: Annotated[
        list[int] | None,
        typer.Option(min=2, max=8, help="Agents on one conversation; may be repeated [3, 5, 8]."),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(min=64, help="Tokens that they share; may be repeated [1000 … 6000]."),
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Conversations at once; may be repeated [1, 4]."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each size is measured.")] = 3,
    as_json: AsJson = False,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """Several roles on one conversation: the role in front against the role behind it."""
    run = BenchRun(base_url, model, server_model, as_json, out, quick)
    with _explained():
        run.specialists(
            agents or list(AGENTS), context or list(CONTEXTS), threads or list(THREADS), repeats
        )


@bench.command()
def router(
    server_model: ServerModel = "tiny",
    as_json: AsJson = False,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """Cached tokens through vllm-router by what requests say of their session; two replicas."""
    with _explained():
        BenchRun(None, None, server_model, as_json, out, quick).router()


@bench.command()
def pd(
    server_model: ServerModel = "smollm2",
    proxy: Annotated[Path, typer.Option(help="The conversation proxy to start in front.")] = PROXY,
    as_json: AsJson = False,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """Later turns on a prefill and a decode server: KV return on and off, shadows on and off."""
    with _explained():
        BenchRun(None, None, server_model, as_json, out, quick).pd(proxy)


@bench.command()
def prediction(
    base_url: BaseUrl = None,
    model: Model = None,
    server_model: ServerModel = "tiny",
    templates: Templates = None,
    as_json: AsJson = False,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """Tokens predicted against tokens cached; exit code 1 when a difference has no explanation."""
    with _explained():
        report = BenchRun(base_url, model, server_model, as_json, out, quick).prediction(templates)
    if report.summary["unexplained"]:
        raise typer.Exit(1)


@bench.command()
def overhead(as_json: AsJson = False, out: Out = OUT, quick: Quick = False) -> None:
    """The library's own time and memory per tool batch; needs no server."""
    with _explained():
        BenchRun(None, None, "", as_json, out, quick).overhead()


@bench.command(name="all")
def run_all(
    base_url: BaseUrl = None,
    model: Model = None,
    server_model: ServerModel = "smollm2",
    trace: Trace = None,
    tools: Tools = None,
    conversations: Conversations = 4,
    templates: Templates = None,
    minutes: Minutes = 28.0,
    out: Out = OUT,
    quick: Quick = False,
) -> None:
    """All five, one after the other; `harm` repeats its loads in the time that is left.

    What one of them could not do does not stop the others. Exit code 1 when one failed.
    """
    end = time.monotonic() + minutes * 60
    run = BenchRun(base_url, model, server_model, False, out, quick)
    tiny = BenchRun(base_url, model, server_model if base_url else "tiny", False, out, quick)
    failed = False
    parts: tuple[Callable[[], Report], ...] = (
        lambda: tiny.prediction(templates),
        run.overhead,
        lambda: run.cost(_recorded(trace, tools)[:conversations], None),
        run.ttft,
        lambda: run.harm(max(0.0, (end - time.monotonic()) / 60)),
    )
    for part in parts:
        try:
            with _explained():
                failed |= bool(part().summary.get("unexplained"))
        except typer.Exit:
            failed = True
        except Exception as error:  # a bug in one of them must not cost the others their half hour
            typer.echo(f"error: {error!r}", err=True)
            failed = True
    if failed:
        raise typer.Exit(1)


@bench.command()
def export(
    trace: Annotated[Path, typer.Option(help="Recorded conversations, one a line.")],
    out: Annotated[Path, typer.Option(help="The workload to write, *.jsonl.")],
    tools: Tools = None,
    language: Annotated[str, typer.Option(help="Language of the updates.")] = "English",
    tool_seconds: Annotated[float, typer.Option(min=0, help="Seconds that tools take.")] = 0.5,
    with_branches: Annotated[
        bool, typer.Option("--branches/--no-branches", help="With branches, or to compare without.")
    ] = True,
) -> None:
    """Write a recorded run with its branches as a workload for aiperf (`dag_jsonl`)."""
    branches = [user_update(language=language)] if with_branches else []
    with _explained():
        lines = aiperf_lines(_recorded(trace, tools), branches, tool_seconds=tool_seconds)
        count = write_aiperf(out, lines)
    typer.echo(
        f"{out}: {count} conversations, those of branches included. Run it with:\n"
        f"aiperf profile --model MODEL --url http://HOST:PORT --endpoint-type chat --streaming "
        f"--input-file {out} --custom-dataset-type dag_jsonl --concurrency 4 "
        "--use-server-token-count"
    )


def _recorded(trace: Path | None, tools: Path | None) -> list[Trajectory]:
    return read_trajectories(trace, tools) if trace is not None else []


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what went wrong into a sentence and an exit code."""
    try:
        yield
    except (ServerConfigError, TraceFormatError) as error:
        _fail(str(error), 2)
    except ShadowError as error:
        _fail(str(error), 1)
    except (openai.APIError, httpx2.HTTPError, httpx.HTTPError) as error:
        _fail(f"the model server failed during the run: {error}", 1)


def _fail(problem: str, code: int) -> None:
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(code)
