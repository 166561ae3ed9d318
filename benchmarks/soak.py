"""Many batches over many threads: does memory stay flat, is anything left, is all accounted for?

`python -m benchmarks.soak --url http://127.0.0.1:8000` or, without vLLM, `--fake`. The
orchestrator is scripted and costs nothing; every branch is a real request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import httpx2
import psutil
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from benchmarks.scripted import agent, ask, scripted
from langgraph_shadow import Branch, Shadow
from tests.faults.server import INSTRUCTION, MODEL, FaultServer

PER_QUESTION = 5
"""Tool batches that one question takes."""
SAMPLES = 10
IDLE_THREADS = 20
IDLE_BATCHES = 20
IDLE_WORDS = 300
"""Words of each tool result, about two thousand characters; an idle thread has seen twenty."""
VOCABULARY = [f"{a}{b}{c}" for a in ("gla", "mor", "cre") for b in "aeiou" for c in ("ne", "vasse")]
PATIENCE_S = 120.0


class Found(BaseModel):
    """What the structured branch answers; a random model gets it right by constraint."""

    found: Literal["yes", "no"]


BRANCHES = (
    Branch(
        name="sentence",
        instruction=INSTRUCTION,
        max_tokens=8,
        when=lambda batch: batch.index % 2 == 1,
    ),
    Branch(
        name="found",
        instruction="Did the tool find anything?",
        skip_word=None,
        max_tokens=16,
        schema=Found,
        when=lambda batch: batch.index % 2 == 0,
    ),
)
"""One is due per batch, so that branches fired are batches made."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The process at one moment: batches made, resident memory (MB), tasks and inet sockets."""

    batches: int
    rss_mb: float
    tasks: int
    sockets: int

    @classmethod
    def now(cls, batches: int) -> Sample:
        """Take a sample."""
        process = psutil.Process()
        return cls(
            batches,
            round(process.memory_info().rss / 1e6, 1),
            len(asyncio.all_tasks()) - 1,
            len(process.net_connections("inet")),
        )


@dataclass(slots=True)
class Result:
    """What the soak found; `left_*` count what was there after `drain` and `aclose`."""

    batches: int = 0
    threads: int = 0
    seconds: float = 0.0
    fired: int = 0
    delivered: int = 0
    late: int = 0
    skipped: int = 0
    failed: int = 0
    shed: int = 0
    shed_reasons: dict[str, int] = field(default_factory=dict)
    unheard: int = 0
    growth_mb: float = 0.0
    idle_thread_kb: float = 0.0
    left_tasks: int = 0
    left_sockets: int = 0
    left_batches: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether every batch is accounted for, once."""
        accounted = self.delivered + self.late + self.skipped + self.failed + self.shed
        return self.batches == self.fired == accounted and not self.unheard

    @property
    def clean(self) -> bool:
        """Whether nothing of ours was left."""
        return not (self.left_tasks or self.left_sockets or self.left_batches)


class Heard:
    """Verdicts heard per thread, so that the tools of a thread take as long as its branch."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._news: dict[str, asyncio.Event] = {}

    async def listen(self, shadow: Shadow) -> None:
        """Count until the shadow is closed."""
        async for event in shadow.events():
            if event.type != "shadow.guard":
                self.counts[event.thread] += 1
                self._news.setdefault(event.thread, asyncio.Event()).set()

    async def wait(self, thread: str, count: int) -> bool:
        """Wait for so many verdicts on a thread; False when they do not come."""
        news = self._news.setdefault(thread, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self.counts[thread] < count:
                    news.clear()
                    await news.wait()
        return self.counts[thread] >= count


async def soak(base_url: str, model: str, *, batches: int, threads: int) -> Result:
    """Make so many batches, evenly over the threads, and account for them."""
    llm = scripted(base_url, model, batches=PER_QUESTION)
    shadow = Shadow(llm, branches=BRANCHES, max_in_flight=16, max_waiting=threads, max_queue=None)
    result, heard, made = Result(threads=threads), Heard(), Counter[str]()

    async def look(thread: str) -> str:
        # the verdict on the batch before; the first of a question waits for the question before
        if not await heard.wait(thread, made[thread]):
            result.unheard += 1
        made[thread] += 1
        if made.total() % max(1, batches // SAMPLES) == 0:
            result.samples.append(Sample.now(made.total()))
        return "glaciers shrink."

    graph = agent(llm, look, shadow)

    async def converse(thread: str) -> None:
        for number in range(batches // threads // PER_QUESTION):
            shadow.expect_break(thread, "another question, without the history")
            await ask(graph, thread, f"Question {number} of {thread}: how fast does ice retreat?")

    before = Sample.now(0)
    listening = asyncio.create_task(heard.listen(shadow))
    start = time.perf_counter()
    await asyncio.gather(*(converse(f"thread {number}") for number in range(threads)))
    await shadow.drain(timeout=PATIENCE_S)
    result.seconds = round(time.perf_counter() - start, 1)
    await shadow.aclose()
    await listening
    await llm.root_async_client.close()
    gc.collect()
    after = Sample.now(made.total())
    result.samples.append(after)
    totals = shadow.ledger.totals
    result.batches, result.fired = made.total(), totals.fired
    result.delivered, result.late = totals.delivered, totals.late
    result.skipped, result.failed, result.shed = totals.skipped, totals.failed, totals.shed
    reasons = Counter(row.reason for row in shadow.ledger if row.verdict == "shed")
    result.shed_reasons = dict(reasons.most_common())
    settled = [s for s in result.samples if s.batches >= result.batches * 0.3]
    result.growth_mb = round(after.rss_mb - settled[0].rss_mb, 1)
    result.left_tasks = after.tasks - before.tasks
    result.left_sockets = after.sockets - before.sockets
    result.left_batches = len(shadow._runner._underway)
    return result


async def idle_thread_kb(base_url: str, model: str, *, threads: int = IDLE_THREADS) -> float:
    """Kilobytes that the shadow keeps of a thread whose run is over, tracemalloc's count."""
    llm = scripted(base_url, model, batches=IDLE_BATCHES)
    quiet = Branch(name="quiet", instruction=INSTRUCTION, when=lambda batch: False)
    shadow = Shadow(llm, branches=[quiet])

    words = random.Random(0)  # text that repeats itself would fold to nothing

    async def look(_: str) -> str:
        return " ".join(words.choices(VOCABULARY, k=IDLE_WORDS))

    graph = agent(llm, look, shadow)
    await ask(graph, "warm up", "Anything?")
    tracemalloc.start()
    try:
        before = await _held(shadow)
        for number in range(threads):
            await ask(graph, f"thread {number}", "How fast does ice retreat?")
        return round((await _held(shadow) - before) / threads / 1e3, 1)
    finally:
        tracemalloc.stop()
        await shadow.aclose()


async def _held(shadow: Shadow) -> int:
    await shadow.drain(timeout=PATIENCE_S)
    wait_for_rest()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def wait_for_rest() -> None:
    """Wait for the short threads in which finished runs are folded."""
    for thread in threading.enumerate():
        if thread.name == "langgraph-shadow-rest":
            thread.join()


def show(result: Result, console: Console) -> None:
    """Print the samples and the account."""
    table = Table(title=f"Soak: {result.batches} batches over {result.threads} threads")
    for name in ("batches", "RSS MB", "tasks", "sockets"):
        table.add_column(name, justify="right")
    for sample in result.samples:
        table.add_row(*map(str, (sample.batches, sample.rss_mb, sample.tasks, sample.sockets)))
    console.print(table)
    console.print(
        f"fired {result.fired} = {result.delivered} delivered + {result.late} late + "
        f"{result.skipped} skipped + {result.failed} failed + {result.shed} shed: "
        f"{'exact' if result.exact else 'NOT EXACT'}, in {result.seconds} s; "
        f"{result.unheard} tools did not wait for their verdict to the end"
    )
    for reason, count in result.shed_reasons.items():
        console.print(f"  shed {count}: {reason}")
    console.print(
        f"left behind: {result.left_tasks} tasks, {result.left_sockets} sockets, "
        f"{result.left_batches} batches; memory since 30 %: {result.growth_mb:+} MB; "
        f"an idle thread: {result.idle_thread_kb} kB"
    )


@contextlib.contextmanager
def target(url: str | None) -> Iterator[tuple[str, str]]:
    """The server's base URL and model; the fake one when no URL is given."""
    if url is None:
        with FaultServer() as fake:
            yield fake.base_url, MODEL
        return
    models = httpx2.get(f"{url}/v1/models", trust_env=False).raise_for_status().json()
    yield f"{url}/v1", models["data"][0]["id"]


def main() -> int:
    """Run from the command line; 1 when something is unaccounted for or left behind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--url", help="a vLLM server, without /v1")
    server.add_argument("--fake", action="store_true", help="a fake server in this process")
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    if options.batches % (options.threads * PER_QUESTION):
        parser.error(f"--batches must be a multiple of {PER_QUESTION} times --threads")
    with target(options.url) as (base_url, model):
        result = asyncio.run(
            soak(base_url, model, batches=options.batches, threads=options.threads)
        )
        result.idle_thread_kb = asyncio.run(idle_thread_kb(base_url, model))
    show(result, Console())
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=2) + "\n")
    return 0 if result.exact and result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
