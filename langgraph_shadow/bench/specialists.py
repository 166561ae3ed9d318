"""`specialists`: agents in several roles on one conversation, the role in front or behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.bench.report import Report, Row, median, ratio
from langgraph_shadow.bench.stopwatch import ModelCall, Stopwatch, cache_use
from langgraph_shadow.bench.target import Session, Target, fresh_salt
from langgraph_shadow.bench.texts import prose
from langgraph_shadow.shadow import Shadow
from langgraph_shadow.specialists import HopRow, ledger_of, specialist

Arm = Literal["role first", "role last"]
Graph = CompiledStateGraph[Any, Any, Any, Any]

ARMS: tuple[Arm, ...] = ("role first", "role last")
AGENTS = (3, 5, 8)
CONTEXTS = (1000, 2000, 4000, 6000)
THREADS = (1, 4)
REPEATS = 3
ANSWER_TOKENS = 48
WORDS = "([a-z]{2,12} ){200}"
"""What answers are made of: a model without sense would else write tokens that are no text."""
KV_EVERY_S = 0.05
GROUP: str | None = "case"
COLUMNS: Mapping[str, str] = {
    "arm": "arm",
    "context_tokens": "context\ntokens",
    "computed": "prompt\ntokens\ncomputed",
    "computed_ratio": "/ role\nfirst",
    "hop_computed": "per hop\nafter the\nfirst",
    "ttft_ms": "TTFT\nper hop\nms",
    "ttft_ratio": "/ role\nfirst",
    "kv_peak": "KV peak\none by\none %",
    "kv_peak_at_once": "KV peak\nall at\nonce %",
    "mispredicted": "mis-\npre-\ndicted",
}
ROLES: Mapping[str, str] = {
    "researcher": "You are the researcher. Say which facts above matter most for the question.",
    "critic": "You are the critic. Name the weakest claim above and say what would settle it.",
    "writer": "You are the writer. Put what is known so far into one clear paragraph.",
    "lawyer": "You are the lawyer. Say which of the claims above could not be defended, and why.",
    "editor": "You are the editor. Say what should be cut from the texts above.",
    "teacher": "You are the teacher. Explain the main point to somebody who is new to it.",
    "sceptic": "You are the sceptic. Give the best reason to believe the opposite of it.",
    "planner": "You are the planner. List what has to be done next, most urgent first.",
}


@dataclass(slots=True)
class Sample:
    """One or more conversations at once under one arm.

    Attributes:
        calls: Every conversation's calls, in the order of its hops.
        rows: The ledger's rows, for role last.
        kv_peak: Highest share of the KV cache in use, percent.
        kv_peak_at_once: The same while all agents answer at once instead of one by one.
        wall_s: Seconds for all conversations, one hop after the other.
    """

    calls: list[list[ModelCall]] = field(default_factory=list)
    rows: list[HopRow] = field(default_factory=list)
    kv_peak: float = 0.0
    kv_peak_at_once: float = 0.0
    wall_s: float = 0.0


async def run(
    target: Target,
    *,
    agents: Sequence[int] = AGENTS,
    contexts: Sequence[int] = CONTEXTS,
    threads: Sequence[int] = THREADS,
    repeats: int = REPEATS,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run every size under both arms, in an order that changes with each repeat.

    Args:
        target: The server.
        agents: Numbers of agents, at most eight.
        contexts: Tokens of the conversation that the agents share.
        threads: Numbers of conversations at once.
        repeats: How often each size is measured; medians are reported.
        say: Told what is being measured.
    """
    room = (target.max_tokens or 1_000_000) - max(agents) * (ANSWER_TOKENS + 16) - 256
    contexts = [tokens for tokens in contexts if tokens <= room]
    rows: list[Row] = []
    async with target.session() as session:
        say("warm-up")
        for arm in ARMS:
            await _sample(session, arm, 2, await _context(session, 300), 1)
        for count, tokens, beside in product(agents, contexts, threads):
            say(f"{count} agents, {tokens} tokens, {beside} threads")
            samples: dict[Arm, list[Sample]] = {arm: [] for arm in ARMS}
            text = await _context(session, tokens)
            for repeat in range(repeats):
                for arm in ARMS[:: -1 if repeat % 2 else 1]:
                    samples[arm].append(await _sample(session, arm, count, text, beside))
            rows += _rows(target.model, count, beside, samples)
    return Report(
        bench="specialists",
        settings={"repeats": repeats, "answer_tokens": ANSWER_TOKENS},
        rows=rows,
        summary=_summary(rows),
        notes=[
            f"Medians of {repeats}; each conversation has a cache salt of its own. KV peaks count "
            "the blocks of running requests, read 20 times a second, and blocks that several of "
            "them share once.",
            "TTFT is measured at the graph's side and holds everything that happens before the "
            "first token, with role last also the alignment.",
        ],
    )


async def _sample(session: Session, arm: Arm, agents: int, text: str, threads: int) -> Sample:
    names = list(ROLES)[:agents]
    sample = Sample()

    async def converse(at_once: bool) -> None:
        salt, watch = fresh_salt(), Stopwatch()
        body = {"cache_salt": salt, "ignore_eos": True, "structured_outputs": {"regex": WORDS}}
        llm = session.llm(max_tokens=ANSWER_TOKENS, extra_body=body)
        shadow = Shadow(llm, branches=[], guard="off")
        graph = _graph(arm, names, llm, shadow, at_once=at_once)
        config: Any = {"callbacks": [watch], "configurable": {"thread_id": salt}}
        await graph.ainvoke({"messages": [HumanMessage(text)]}, config)
        if not at_once:
            sample.calls.append(watch.calls)
            sample.rows += ledger_of(shadow).rows
        await shadow.aclose()

    start = time.perf_counter()
    async with cache_use(session, every_s=KV_EVERY_S) as use:
        await asyncio.gather(*(converse(False) for _ in range(threads)))
    sample.wall_s = time.perf_counter() - start
    sample.kv_peak = 100 * max(use.readings, default=0.0)
    async with cache_use(session, every_s=KV_EVERY_S) as use:
        await asyncio.gather(*(converse(True) for _ in range(threads)))
    sample.kv_peak_at_once = 100 * max(use.readings, default=0.0)
    return sample


def _graph(
    arm: Arm, names: Sequence[str], llm: ChatOpenAI, shadow: Shadow, *, at_once: bool
) -> Graph:
    """A chain of agents, or all of them side by side."""
    builder = StateGraph(MessagesState)
    before = START
    for name in names:
        if arm == "role last":
            node: Any = specialist(shadow, name=name, role=ROLES[name])
        else:
            node = _role_first(name, llm)
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = START if at_once else name
    return builder.compile()


def _role_first(name: str, llm: ChatOpenAI) -> Callable[[MessagesState], Any]:
    """An agent as it is usually written."""
    system = SystemMessage(ROLES[name])

    async def call(state: MessagesState) -> dict[str, Any]:
        reply = await llm.ainvoke([system, *state["messages"]])
        return {"messages": [reply.model_copy(update={"name": name})]}

    return call


async def _context(session: Session, tokens: int) -> str:
    """A question with so much to read that it has about so many tokens."""
    words = tokens
    for _ in range(4):
        text = f"What follows from this? {prose(fresh_salt(), max(1, words))}"
        prompt = Prompt(session.target.model, ({"role": "user", "content": text},))
        counted = len(await session.renderer.render(prompt))
        if abs(counted - tokens) <= tokens // 50:
            break
        words = round(words * tokens / counted)
    return text


def _rows(model: str, agents: int, threads: int, samples: Mapping[Arm, list[Sample]]) -> list[Row]:
    made: dict[Arm, Row] = {}
    for arm, mine in samples.items():
        conversations = [calls for sample in mine for calls in sample.calls]
        later = [call for calls in conversations for call in calls[1:]]
        made[arm] = {
            "case": f"{agents} agents, {threads} thread{'s' if threads > 1 else ''}",
            "model": model,
            "arm": arm,
            "agents": agents,
            "threads": threads,
            "context_tokens": round(median(calls[0].prompt for calls in conversations) or 0),
            "prompt_tokens": _median(sum(c.prompt for c in calls) for calls in conversations),
            "computed": _median(sum(_computed(c) for c in calls) for calls in conversations),
            "hop_computed": _median(_computed(call) for call in later),
            "ttft_ms": median(call.ttft_ms for call in later),
            "first_ttft_ms": median(calls[0].ttft_ms for calls in conversations),
            "wall_s": median(sample.wall_s for sample in mine),
            "kv_peak": median(sample.kv_peak for sample in mine),
            "kv_peak_at_once": median(sample.kv_peak_at_once for sample in mine),
            "mispredicted": sum(r.as_predicted is False for s in mine for r in s.rows)
            if arm == "role last"
            else None,
        }
    first = made["role first"]
    for row in made.values():
        for name in ("computed", "ttft", "kv_peak_at_once"):
            key = name if name in row else f"{name}_ms"
            row[f"{name}_ratio"] = ratio(row[key], first[key])
    return list(made.values())


def _computed(call: ModelCall) -> int:
    return call.prompt - call.cached


def _median(values: Iterable[int]) -> int:
    return round(median(values) or 0)


def _summary(rows: Sequence[Row]) -> Row:
    """Role last against role first, the extremes over all sizes."""
    last = [row for row in rows if row["arm"] == "role last"]
    return {
        "computed_ratio": [
            min(r["computed_ratio"] for r in last),
            max(r["computed_ratio"] for r in last),
        ],
        "ttft_ratio": [
            min(r["ttft_ratio"] or 0 for r in last),
            max(r["ttft_ratio"] or 0 for r in last),
        ],
        "hop_computed": [
            min(r["hop_computed"] for r in last),
            max(r["hop_computed"] for r in last),
        ],
        "mispredicted": sum(r["mispredicted"] for r in last),
    }
