"""One call of `langgraph-shadow bench`: its server, its sizes, and where its report goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import typer
from rich.console import Console

from langgraph_shadow.bench import (
    cost,
    harm,
    overhead,
    pd,
    plots,
    prediction,
    router,
    specialists,
    ttft,
)
from langgraph_shadow.bench.report import Report, Row, load, machine, table_of, versions
from langgraph_shadow.bench.research import QUESTIONS
from langgraph_shadow.bench.target import Target
from langgraph_shadow.bench.trajectories import Trajectory
from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.server.cluster import Replicas
from langgraph_shadow.server.local import LocalServer
from langgraph_shadow.server.models import EMBEDDED_MODELS
from langgraph_shadow.server.progress import TerminalProgress

BLOCK_SIZES = (32, 64, 128)
"""What vLLM takes on a CPU: multiples of 32 (facts/vllm.md, "Start")."""

TEMPLATES_WELCOME = ("--trust-request-chat-template",)
LONG_CONTEXT = ("--max-model-len", "16384")
"""Recorded conversations are longer than the small model's context; the tiny one takes them."""


class _Bench(Protocol):
    """What a benchmark's module says of its table."""

    COLUMNS: Mapping[str, str]
    GROUP: str | None


@dataclass(slots=True)
class BenchRun:
    """How one command was called."""

    base_url: str | None
    model: str | None
    server_model: str
    as_json: bool
    out: Path
    quick: bool
    errors: Console = field(default_factory=lambda: Console(stderr=True))

    def say(self, text: str) -> None:
        """Tell what is being done, where it does not mix with the result."""
        self.errors.print(f"  {text}", style="dim", highlight=False)

    @contextmanager
    def server(self, model: str | None = None, *flags: str) -> Iterator[Target]:
        """The server that was named, or a local one for as long as the block runs."""
        with ExitStack() as stack:
            if self.base_url is not None:
                yield Target.at(self.base_url, self.model)
                return
            local = LocalServer(
                model or self.server_model,
                extra_args=flags,
                progress=TerminalProgress(self.errors),
            )
            stack.enter_context(local)
            yield Target.at(local.base_url, local.model)

    def publish(
        self,
        bench: _Bench,
        make: Callable[[], Report],
        condense: Callable[[list[Row]], list[Row]] = lambda rows: rows,
    ) -> Report:
        """Make a report, add where it was made, write it, and show it.

        Args:
            bench: Says which columns the terminal's table has.
            make: Runs the benchmark.
            condense: Turns the rows into those of the table.
        """
        started, before = datetime.now(UTC), load()
        report = make()
        report.machine = {**machine(), "load_before": before, "load_after": load()}
        report.versions = {**versions(), **report.versions}
        report.settings = {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - started).total_seconds()),
            "quick": self.quick,
            **report.settings,
        }
        path = report.save(self.out)
        picture = plots.save(report, self.out)
        if self.as_json:
            typer.echo(report.text())
        else:
            console = Console()
            console = console if console.is_terminal else Console(width=110)
            rows = condense(report.rows)
            console.print(table_of(f"bench {report.bench}", rows, bench.COLUMNS, bench.GROUP))
            for note in report.notes:
                console.print(note, highlight=False)
        drawn = picture or f"no picture: {plots.INSTALL}"
        self.errors.print(f"{path}, {drawn}", highlight=False, soft_wrap=True, markup=False)
        return report

    # one method per benchmark, so that `all` runs exactly what each command runs

    def prediction(self, templates: Path | None) -> Report:
        """Every carrier, template and block size."""
        sources = _sources(templates) if templates is not None else {}
        sizes = (None,) if self.base_url else BLOCK_SIZES[: 1 if self.quick else None]

        def make() -> Report:
            whole: Report | None = None
            for size in sizes:
                flags = () if size is None else ("--block-size", str(size))
                with self.server(None, *TEMPLATES_WELCOME, *flags) as target:
                    part = asyncio.run(
                        prediction.run(
                            target,
                            templates=sources,
                            scenarios=prediction.SCENARIOS[: 1 if self.quick else None],
                            loops=prediction.LOOPS[: 1 if self.quick else None],
                            say=self.say,
                        )
                    )
                whole = _of(target, part) if whole is None else whole.joined(part)
            assert whole is not None
            rows = whole.rows
            whole.settings["block_sizes"] = sorted({row["block_size"] for row in rows})
            whole.summary, whole.notes = prediction.summary(rows), prediction.notes(rows)
            return whole

        return self.publish(prediction, make, prediction.condensed)

    def overhead(self) -> Report:
        """The library's own time and memory."""
        lengths = overhead.LENGTHS[: 2 if self.quick else None]
        batches = 5 if self.quick else overhead.BATCHES
        return self.publish(
            overhead,
            lambda: asyncio.run(overhead.run(lengths=lengths, batches=batches, say=self.say)),
        )

    def cost(self, trajectories: list[Trajectory], constrained: bool | None) -> Report:
        """Five arms on the research agent, and on recordings where there are any."""
        questions = QUESTIONS[: 1 if self.quick else None]
        if self.quick:
            trajectories = [t.cut(4) for t in trajectories[:1]]

        def measure(target: Target, asked: tuple[str, ...], replayed: list[Trajectory]) -> Report:
            constrain = target.model in EMBEDDED_MODELS if constrained is None else constrained
            run = cost.run(
                target,
                questions=asked,
                trajectories=replayed,
                constrain=constrain,
                say=self.say,
            )
            return _of(target, asyncio.run(run))

        def make() -> Report:
            apart = bool(trajectories) and self.base_url is None
            with self.server() as target:
                report = measure(target, questions, [] if apart else trajectories)
            if apart:
                with self.server("tiny", *LONG_CONTEXT) as target:
                    report = report.joined(measure(target, (), trajectories))
            return report

        return self.publish(cost, make)

    def ttft(self) -> Report:
        """Time to the first token over the trunk's length."""
        lengths = ttft.LENGTHS[: 2 if self.quick else None]
        repeats = 1 if self.quick else ttft.REPEATS

        def make() -> Report:
            with self.server() as target:
                run = ttft.run(target, lengths=lengths, repeats=repeats, say=self.say)
                return _of(target, asyncio.run(run))

        return self.publish(ttft, make)

    def specialists(
        self, agents: list[int], contexts: list[int], threads: list[int], repeats: int
    ) -> Report:
        """Roles in front of a conversation against roles behind it."""
        if self.quick:
            agents, contexts, threads, repeats = agents[:1], contexts[:1], threads[:1], 1

        def make() -> Report:
            with self.server() as target:
                run = specialists.run(
                    target,
                    agents=agents,
                    contexts=contexts,
                    threads=threads,
                    repeats=repeats,
                    say=self.say,
                )
                return _of(target, asyncio.run(run))

        return self.publish(specialists, make)

    def router(self) -> Report:
        """What is found through a router, and what hints do when the cache is too small."""
        threads, batches = (3, 1) if self.quick else (router.THREADS, router.BATCHES)

        def make() -> Report:
            progress = TerminalProgress(self.errors)
            with Replicas(self.server_model, progress=progress) as cluster:
                spread = asyncio.run(
                    router.run(cluster, threads=threads, batches=batches, say=self.say)
                )
            cramped = Replicas(
                self.server_model,
                count=1,
                extra_args=router.CRAMPED,
                router_args=router.SCHEDULING,
                progress=progress,
            )
            with cramped:
                run = router.run_cramped(cramped, threads=threads, batches=batches, say=self.say)
                return spread.joined(asyncio.run(run))

        return self.publish(router, make)

    def pd(self, proxy: Path) -> Report:
        """What KV return brings, and that shadows take nothing of it."""
        batches = 1 if self.quick else pd.BATCHES
        progress = TerminalProgress(self.errors)

        def make() -> Report:
            run = pd.run(
                self.server_model, proxy=proxy, batches=batches, progress=progress, say=self.say
            )
            return asyncio.run(run)

        return self.publish(pd, make)

    def harm(self, minutes: float) -> Report:
        """The orchestrator's times beside shadows."""
        cases = harm.cases((1,), (0.0,))[:1] if self.quick else None

        def make() -> Report:
            with self.server() as target:
                run = harm.run(
                    target,
                    chosen=cases,
                    minutes=minutes,
                    max_repeats=1 if self.quick else harm.REPEATS,
                    say=self.say,
                )
                return _of(target, asyncio.run(run))

        return self.publish(harm, make)


def _sources(folder: Path) -> dict[str, str]:
    """The chat templates of a folder by name.

    Raises:
        TraceFormatError: There are none.
    """
    found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
    if not found:
        expected = "a folder with chat templates (*.jinja)"
        raise TraceFormatError(str(folder), 0, found="no template", expected=expected)
    return found


def _of(target: Target, report: Report) -> Report:
    """The report with what is known of its server."""
    report.server = target.described()
    report.versions = {"vllm": target.version}
    return report
