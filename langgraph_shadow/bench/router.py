"""`router`: what reaches the cache through a router, by what a request says of its session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import count
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_shadow.bench.looping import Looping, looping_agent, search_tool
from langgraph_shadow.bench.report import Report, Row, median, ratio
from langgraph_shadow.bench.stopwatch import ModelCall, Stopwatch
from langgraph_shadow.bench.target import Session, Target, fresh_salt, seconds_since
from langgraph_shadow.branches.branch import user_update
from langgraph_shadow.delivery.ledger import LedgerRow
from langgraph_shadow.runner.affinity import Affinity
from langgraph_shadow.server.cluster import Replicas
from langgraph_shadow.server.metrics import fetch_metrics
from langgraph_shadow.server.router import RouterProcess
from langgraph_shadow.shadow import Shadow

THREADS = 9
"""Odd: under `round_robin` an even number of threads in step keeps each thread on one server."""

BATCHES = 3
ANSWER_TOKENS = 8
TOOL_SECONDS = 0.5

CRAMPED = ("--max-model-len", "2048", "--num-gpu-blocks-override", "96")
"""vLLM flags for a cache of 3 072 tokens (blocks of 32), which holds about half of the threads."""

SCHEDULING = ("--enable-program-scheduling",)
DRAIN_S = 120.0
GROUP: str | None = None
COLUMNS: Mapping[str, str] = {
    "arm": "arm",
    "requests": "requests\nper\nserver",
    "orchestrator_cached": "orches-\ntrator,\ncached",
    "branches": "bran-\nches",
    "branch_cached": "bran-\nches,\ncached",
    "as_on_one": "same\ntokens as\non one",
    "missed": "missed",
    "ttft_ms": "orches-\ntrator\nttft ms",
    "branch_ttft_ms": "branch\nttft ms",
    "wall_s": "wall s",
}

_requests = count()


class Traced(Looping):
    """A model whose requests all get a fresh id, as a tracer gives them."""

    def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload(*args, **kwargs)
        fresh = {"X-Request-ID": f"request-{next(_requests)}"}
        return {**payload, "extra_headers": {**(payload.get("extra_headers") or {}), **fresh}}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to reach the servers.

    Attributes:
        name: What the table calls it.
        base_url: Where requests go.
        affinity: What they say of their session.
        model: The orchestrator's model.
    """

    name: str
    base_url: str
    affinity: Affinity | None = None
    model: type[Looping] = Looping


@dataclass(slots=True)
class Sample:
    """One run of all threads under one arm."""

    calls: list[ModelCall] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def cached(self) -> dict[tuple[str, tuple[str, ...]], int | None]:
        """Each branch's cached tokens, by thread and tool batch."""
        return {(row.thread, row.tool_call_ids): row.cached for row in self.rows}


async def run(
    cluster: Replicas,
    *,
    threads: int = THREADS,
    batches: int = BATCHES,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run the same agents by every way, one after the other.

    Args:
        cluster: Servers behind vllm-router with `consistent_hash`.
        threads: Agents at once.
        batches: Tool batches of each.
        say: Told what is being done.
    """
    one = cluster.servers[0]
    workers = [server.root_url for server in cluster.servers]
    in_turn = RouterProcess(["--worker-urls", *workers, "--policy", "round_robin"])
    by_hash = cluster.base_url
    affinity = Affinity.for_router("vllm-router")
    target = await asyncio.to_thread(Target.at, one.base_url, one.model)
    samples: dict[str, Sample] = {}
    with in_turn:
        for arm in (
            Arm("one server", one.base_url),
            Arm("affinity", by_hash, affinity),
            Arm("affinity, tracer's ids", by_hash, affinity, Traced),
            Arm("no header", by_hash),
            Arm("tracer's ids only", by_hash, None, Traced),
            Arm("round_robin", in_turn.base_url),
        ):
            say(arm.name)
            there = replace(target, base_url=arm.base_url)
            async with there.session() as session:
                samples[arm.name] = await sample(
                    session, arm, workers, threads=threads, batches=batches
                )
    alone = samples["one server"].cached
    rows = [_row(name, found, alone) for name, found in samples.items()]
    return Report(
        bench="router",
        server=target.described(),
        versions={"vllm": target.version, "vllm-router": version("vllm-router")},
        settings={"threads": threads, "batches": batches, "servers": len(workers)},
        rows=rows,
        summary={
            row["arm"]: {k: row[k] for k in ("orchestrator_cached", "branch_cached", "as_on_one")}
            for row in rows
        },
        notes=[
            "Shares are of prompt tokens; the orchestrator's without each thread's first call. "
            "Every arm has its own cache salt, so none finds another one's blocks."
        ],
    )


async def run_cramped(
    cluster: Replicas,
    *,
    threads: int = THREADS,
    batches: int = BATCHES,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run more threads than fit into the cache, with and without hints to the scheduler.

    Args:
        cluster: One server started with `CRAMPED`, behind vllm-router with `SCHEDULING`.
        threads: Agents at once.
        batches: Tool batches of each.
        say: Told what is being done.
    """
    one = cluster.servers[0]
    target = replace(
        await asyncio.to_thread(Target.at, one.base_url, one.model), base_url=cluster.base_url
    )
    rows = []
    for name, hints in (("cramped, no hints", False), ("cramped, hints", True)):
        say(name)
        arm = Arm(name, cluster.base_url, Affinity.for_router("vllm-router", hints=hints))
        async with target.session() as session:
            found = await sample(
                session,
                arm,
                [one.root_url],
                threads=threads,
                batches=batches,
                seconds=TOOL_SECONDS,
            )
        rows.append({**_row(name, found, {}), "as_on_one": None})
    return Report(
        bench="router",
        settings={"cramped_threads": threads, "tool_seconds": TOOL_SECONDS},
        rows=rows,
        summary={row["arm"]: row["orchestrator_cached"] for row in rows},
        notes=[
            "The cramped arms have one server whose cache holds about half of the threads, and "
            "vllm-router's program scheduling in front of it."
        ],
    )


async def sample(
    session: Session,
    arm: Arm,
    workers: Sequence[str],
    *,
    threads: int,
    batches: int,
    seconds: float = 0.0,
) -> Sample:
    """Run all threads at once under one arm, with tools that take so many seconds."""
    salt = {"extra_body": {"cache_salt": fresh_salt()}}
    settings = session.settings(max_tokens=ANSWER_TOKENS, batches=batches, **salt)
    llm = arm.model(**settings)
    shadow = Shadow(
        llm,
        branches=[user_update()],
        affinity=arm.affinity,
        late="deliver",
        # nothing is shed: it is counted where requests land, not what they cost
        max_queue=None,
        max_kv_usage=None,
        max_in_flight=threads,
        timeout=DRAIN_S,
        on_event=lambda _: None,
    )
    watch = Stopwatch()
    before = [await asyncio.to_thread(_requests_of, url) for url in workers]
    start = time.perf_counter()

    async def agent(number: int) -> None:
        thread = f"thread {number}"
        graph = looping_agent(shadow.watch(llm), search_tool(thread, (seconds,)), shadow)
        config: RunnableConfig = {"configurable": {"thread_id": thread}, "callbacks": [watch]}
        await graph.ainvoke(_question(thread), config)

    await asyncio.gather(*(agent(number) for number in range(threads)))
    wall = seconds_since(start)
    await shadow.drain(timeout=DRAIN_S)
    await shadow.aclose()
    after = [await asyncio.to_thread(_requests_of, url) for url in workers]
    return Sample(
        calls=watch.calls,
        rows=list(shadow.ledger),
        requests=[b - a for a, b in zip(before, after, strict=True)],
        wall_s=wall,
    )


def _question(thread: str) -> Any:
    return {"messages": [("user", f"What is known? ({thread})")]}


def _requests_of(url: str) -> int:
    return fetch_metrics(url).requests_finished


def _row(name: str, found: Sample, alone: Mapping[tuple[str, tuple[str, ...]], int | None]) -> Row:
    known = [row for row in found.rows if row.cached is not None and row.prompt_tokens]
    same = sum(row.cached == alone.get((row.thread, row.tool_call_ids)) for row in known)
    later = [call for i, call in enumerate(found.calls) if _later(found.calls[:i], call)]
    return {
        "arm": name,
        "requests": " / ".join(map(str, found.requests)),
        "orchestrator_cached": ratio(sum(c.cached for c in later), sum(c.prompt for c in later)),
        "branches": len(found.rows),
        "branch_cached": ratio(
            sum(row.cached or 0 for row in known), sum(row.prompt_tokens or 0 for row in known)
        ),
        "as_on_one": ratio(same, len(found.rows)),
        "missed": sum(bool(row.miss) for row in found.rows),
        "ttft_ms": median(call.ttft_ms for call in later),
        "branch_ttft_ms": median(row.ttft_ms for row in known),
        "wall_s": found.wall_s,
    }


def _later(before: Sequence[ModelCall], call: ModelCall) -> bool:
    """Whether a thread was seen before."""
    return any(seen.thread == call.thread for seen in before)
