"""`overhead`: the library's own time and memory per tool batch, over the history's length.

Needs no server: what is measured is what runs in the agent's process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_openai import ChatOpenAI

from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Prompt, Rendering, Unit
from langgraph_shadow.bench.report import Report, Row, median, percentile
from langgraph_shadow.bench.texts import SEARCH, research, research_trunk
from langgraph_shadow.branches.branch import user_update
from langgraph_shadow.shadow import Shadow
from langgraph_shadow.trunk.model import canonical

LENGTHS = (1_000, 3_000, 10_000, 30_000, 100_000)
BATCHES = 20
WORDS_PER_TOKEN = 0.75
GROUP: str | None = None
COLUMNS: Mapping[str, str] = {
    "history_tokens": "history\ntokens",
    "messages": "mes-\nsages",
    "path_us": "in the\npath\nµs",
    "path_p95_us": "p95\nµs",
    "first_ms": "first\ncall\nms",
    "align_ms": "aligning,\nbeside it\nms",
    "retained_kib": "memory\nKiB",
    "per_batch_kib": "per\nbatch\nKiB",
}


async def run(
    *,
    lengths: Sequence[int] = LENGTHS,
    batches: int = BATCHES,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Let so many tool batches follow each history, and take the medians."""
    say("warm-up")
    with _silent():
        await _row(lengths[0], batches)
        rows = []
        for length in lengths:
            say(f"{length} tokens")
            rows.append(await _row(length, batches))
    longest = rows[-1]
    return Report(
        bench="overhead",
        settings={"batches": batches},
        rows=rows,
        summary={
            "history_tokens": longest["history_tokens"],
            "path_us": longest["path_us"],
            "align_ms": longest["align_ms"],
            "retained_kib": longest["retained_kib"],
        },
        notes=[
            f"Medians of {batches} tool batches, each on top of the whole history. In the path: "
            "capture, guard and trigger of one model call, and reading its answer. Aligning leaves "
            "out the server's rendering. A token is taken as three quarters of a word."
        ],
    )


async def _row(tokens: int, batches: int) -> Row:
    words = int(tokens * WORDS_PER_TOKEN)
    base = _messages("base", words)
    fresh = _messages("fresh", 180 * batches)[2:]
    first, path = await _drive(base, fresh)
    shadow = _shadow()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await _drive(base, (), shadow)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        await _drive(base, fresh, shadow)  # another thread, so it holds the same once more
        gc.collect()
        more = tracemalloc.get_traced_memory()[0] - before - 2 * held
    finally:
        tracemalloc.stop()
    return {
        "history_tokens": tokens,
        "messages": len(base),
        "path_us": median(path),
        "path_p95_us": percentile(path, 0.95),
        "first_ms": round(first / 1e3, 3),
        "align_ms": median([await _align_ms(words) for _ in range(5)]),
        "retained_kib": round(held / 1024, 1),
        "per_batch_kib": round(more / 1024 / batches, 1),
    }


def _messages(seed: str, words: int) -> list[BaseMessage]:
    return convert_to_messages([dict(message) for message in research(seed, words)])


async def _drive(
    base: Sequence[BaseMessage], fresh: Sequence[BaseMessage], shadow: Shadow | None = None
) -> tuple[float, list[float]]:
    """Show the handlers one model call per tool batch, as LangChain would.

    Returns:
        Microseconds of the first call, which sees the history for the first time, and of each
        later one with its answer.
    """
    shadow = shadow or _shadow()
    history = list(base)
    thread = uuid4().hex
    times = [_call_us(shadow, history, thread, answer=None)]
    for place in range(0, len(fresh), 2):
        assistant, result = fresh[place : place + 2]
        spent = _call_us(shadow, history, thread, answer=assistant)
        history += [assistant, result]
        times.append(spent)
        await asyncio.sleep(0)  # what was started beside the agent gets its turn between calls
    await shadow.drain(timeout=5)
    return times[0], times[1:]


def _call_us(
    shadow: Shadow, history: Sequence[BaseMessage], thread: str, *, answer: BaseMessage | None
) -> float:
    run_id, metadata = uuid4(), {"thread_id": thread, "langgraph_node": "agent"}
    params = {"model": "m", "tools": [SEARCH]}
    start = time.thread_time()  # of this thread alone, so that a busy machine changes little
    for handler in shadow.callbacks:
        handler.on_chat_model_start(
            {}, [list(history)], run_id=run_id, metadata=metadata, invocation_params=params
        )
    if answer is not None:
        result = LLMResult(generations=[[ChatGeneration(message=answer)]])
        for handler in shadow.callbacks:
            handler.on_llm_end(result, run_id=run_id)
    return (time.thread_time() - start) * 1e6


def _shadow() -> Shadow:
    """A shadow whose branches are never due, on an address where nothing answers."""
    llm = ChatOpenAI(
        base_url="http://127.0.0.1:9/v1", model="m", api_key="none", use_responses_api=False
    )
    return Shadow(llm, branches=[])


class _Tokens:
    """A renderer without a server: each message's words become token ids, once."""

    unit: Unit = "tokens"

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ids: dict[bytes, tuple[int, ...]] = {}

    async def render(self, prompt: Prompt) -> Rendering:
        """Concatenate the messages' ids; the time this takes is the server's."""
        start = time.thread_time()
        items: list[int] = []
        for message in prompt.messages:
            items += self._words(canonical(message).decode())
        items += self._words("assistant :")
        self.seconds += time.thread_time() - start
        return Rendering("tokens", tuple(items), "words")

    async def tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a bare text."""
        return self._words(text)

    def _words(self, text: str) -> tuple[int, ...]:
        key = text.encode()
        if key not in self._ids:
            parts = text.replace('"', ' " ').split()
            self._ids[key] = tuple(hash(part) & 0xFFFF for part in parts)
        return self._ids[key]


async def _align_ms(words: int) -> float:
    trunk = research_trunk(uuid4().hex, words, model="m")
    renderer = _Tokens()
    start = time.thread_time()
    await Ladder().align(trunk, user_update().instruction, renderer, block_size=16)
    return (time.thread_time() - start - renderer.seconds) * 1e3


@contextmanager
def _silent() -> Iterator[None]:
    """Keep back the library's warnings that no server answers."""
    logger: Any = logging.getLogger("langgraph_shadow")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
