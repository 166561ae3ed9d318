"""What an orchestrator's model calls took and used, and how full the server's cache was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

    from langgraph_shadow.bench.target import Session

KV_EVERY_S = 0.5


@dataclass(eq=False, slots=True)
class ModelCall:
    """One model call; times are readings of `time.perf_counter`.

    Attributes:
        thread: The conversation that it belongs to.
        started: When it was sent.
        first: When its first token came; None before.
        last: When its newest token came.
        tokens: Pieces of text that were streamed.
        prompt: Prompt tokens.
        cached: Those of them that came from the prefix cache.
        generated: Tokens generated.
    """

    thread: str
    started: float
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0

    @property
    def ttft_ms(self) -> float | None:
        """Milliseconds to the first token."""
        return (self.first - self.started) * 1e3 if self.first is not None else None

    @property
    def answer_ms(self) -> float | None:
        """Milliseconds to the whole answer."""
        return (self.last - self.started) * 1e3 if self.last is not None else None

    @property
    def itl_ms(self) -> float | None:
        """Mean milliseconds between two tokens."""
        if self.first is None or self.last is None or self.generated < 2:
            return None
        return (self.last - self.first) * 1e3 / (self.generated - 1)


class Stopwatch(AsyncCallbackHandler):
    """Records every model call that it is attached to.

    Attributes:
        calls: The calls, in the order in which they were sent.
    """

    run_inline = True

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []
        self._running: dict[UUID, ModelCall] = {}

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A call is about to be sent."""
        call = ModelCall(str((metadata or {}).get("thread_id", "")), time.perf_counter())
        self._running[run_id] = call
        self.calls.append(call)

    async def on_llm_new_token(
        self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """A piece of the answer came; pieces without text (usage, roles) do not count."""
        call = self._running.get(run_id)
        if call is None or not token:
            return
        call.last = time.perf_counter()
        call.first = call.first or call.last
        call.tokens += 1

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """The answer ended; its usage is known."""
        call = self._running.pop(run_id, None)
        message: Any = getattr(response.generations[0][0], "message", None)
        usage = getattr(message, "usage_metadata", None)
        if call is None or not usage:
            return
        call.prompt = usage["input_tokens"]
        call.cached = usage.get("input_token_details", {}).get("cache_read") or 0
        call.generated = usage["output_tokens"]


@dataclass(slots=True)
class CacheUse:
    """Readings of the share of the KV cache that running requests hold, 0 to 1."""

    readings: list[float] = field(default_factory=list)


@asynccontextmanager
async def cache_use(session: Session, *, every_s: float = KV_EVERY_S) -> AsyncIterator[CacheUse]:
    """Read the server's KV cache use every so many seconds while the block runs."""
    use = CacheUse()

    async def watch() -> None:
        while True:
            use.readings.append((await session.engine.metrics()).kv_cache_usage)
            await asyncio.sleep(every_s)

    task = asyncio.create_task(watch())
    try:
        yield use
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
