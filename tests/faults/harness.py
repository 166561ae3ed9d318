"""Runs one agent with and without a shadow, and compares what is left of both runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx2
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode

from langgraph_shadow import Branch, Shadow
from tests.agents import hand_built
from tests.faults.server import INSTRUCTION, MODEL, FaultServer

Mode = Literal["sync", "async"]
MODES: tuple[Mode, ...] = ("sync", "async")
BATCHES = 2
BRANCH = Branch(name="note", instruction=INSTRUCTION)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves to its caller.

    Attributes:
        messages: The final state's messages, without random ids.
        upcoming: The nodes that would run next.
        checkpoints: Checkpoints written.
        shown: What `values` and `messages` streamed, without random ids.
        error: The exception's type and words.
    """

    messages: tuple[Any, ...]
    upcoming: tuple[str, ...]
    checkpoints: int
    shown: tuple[Any, ...] = ()
    error: tuple[type[BaseException], str] | None = None


Hook = Callable[[int], None]
"""What a tool does besides: called with the number of the call, from 0."""


def no_hook(_: int) -> None:
    """A tool that only returns its text."""


class Agent:
    """A two-batch agent on a fault server, with or without a shadow."""

    def __init__(
        self, llm: ChatOpenAI, shadow: Shadow | None, hook: Hook, ahook: Callable[[int], Any] | None
    ) -> None:
        self.saver = InMemorySaver()
        calls = itertools.count()

        @tool("search")
        def search(topic: str = "") -> str:
            """Search the archive."""
            hook(next(calls))
            return f"{topic}: glaciers shrink."

        async def asearch(topic: str = "") -> str:
            number = next(calls)
            if ahook is not None:
                await ahook(number)
            else:
                await asyncio.to_thread(hook, number)
            return f"{topic}: glaciers shrink."

        search.coroutine = asearch  # type: ignore[attr-defined]
        node: Any = ToolNode([search])
        if shadow is not None:
            node = shadow.tool_node(node)
        builder = hand_built(llm, batches=BATCHES, tools_node=node, system=lambda: "Be careful.")
        graph = builder.compile(checkpointer=self.saver)
        self.graph: Any = graph if shadow is None else shadow.attach(graph)
        self.interrupt_after: list[str] = []

    def config(self, thread: str) -> dict[str, Any]:
        return {"configurable": {"thread_id": thread}}

    def run(self, thread: str = "t") -> Outcome:
        """Run in this thread; exceptions are part of the outcome."""
        shown: list[Any] = []
        error = None
        try:
            stream = self.graph.stream(
                _question(),
                self.config(thread),
                stream_mode=["values", "custom"],
                interrupt_after=self.interrupt_after,
            )
            for mode, part in stream:
                shown += _shown(mode, part)
        except BaseException as raised:
            error = (type(raised), str(raised))
        return self.outcome(thread, shown, error)

    async def arun(self, thread: str = "t") -> Outcome:
        """Run in this loop; exceptions, a cancellation too, are part of the outcome."""
        shown: list[Any] = []
        error = None
        try:
            stream = self.graph.astream(
                _question(),
                self.config(thread),
                stream_mode=["values", "messages", "custom"],
                interrupt_after=self.interrupt_after,
            )
            async for mode, part in stream:
                shown += _shown(mode, part)
        except (Exception, asyncio.CancelledError) as raised:
            error = (type(raised), str(raised))
        return self.outcome(thread, shown, error)

    def outcome(
        self, thread: str, shown: list[Any], error: tuple[type[BaseException], str] | None
    ) -> Outcome:
        state = self.graph.get_state(self.config(thread))
        return Outcome(
            messages=_plain(state.values.get("messages", ())),
            upcoming=tuple(state.next),
            checkpoints=len(list(self.graph.get_state_history(self.config(thread)))),
            shown=tuple(shown),
            error=error,
        )


@contextmanager
def sync_agent(
    server: FaultServer, shadow: Shadow | None = None, hook: Hook = no_hook
) -> Iterator[Agent]:
    """An agent with an HTTP client of its own, closed again."""
    with httpx2.Client(verify=False) as client:
        yield Agent(model(server, http_client=client), shadow, hook, None)


@asynccontextmanager
async def async_agent(
    server: FaultServer,
    shadow: Shadow | None = None,
    hook: Hook = no_hook,
    ahook: Callable[[int], Any] | None = None,
) -> Any:
    """The same for the running loop."""
    async with httpx2.AsyncClient(verify=False) as client:
        yield Agent(model(server, http_async_client=client), shadow, hook, ahook)


def model(server: FaultServer, **options: Any) -> ChatOpenAI:
    """The orchestrator's model; its default clients would load certificates for every test."""
    clients = {
        "http_client": httpx2.Client(verify=False),
        "http_async_client": httpx2.AsyncClient(verify=False),
    }
    return ChatOpenAI(
        base_url=server.base_url,
        model=MODEL,
        api_key="x",
        temperature=0,
        use_responses_api=False,
        stream_usage=True,
        **{**clients, **options},
    )


def shadow_on(server: FaultServer, **options: Any) -> Shadow:
    """A shadow whose limits no loaded machine reaches, unless `options` set them."""
    limits = {
        "timeout": 30.0,
        "deadline": 5.0,
        "late": "deliver",
        "branches": [BRANCH],
        **options,
    }
    return Shadow(model(server), **limits)


def run(
    mode: Mode,
    server: FaultServer,
    shadow: Shadow | None = None,
    hook: Hook = no_hook,
    *,
    thread: str = "t",
) -> Outcome:
    """Run the agent once in a mode, and drain the shadow."""
    if mode == "sync":
        with sync_agent(server, shadow, hook) as agent:
            outcome = agent.run(thread)
        if shadow is not None:
            assert shadow.drain_sync(timeout=30)
        return outcome

    async def main() -> Outcome:
        async with async_agent(server, shadow, hook) as agent:
            outcome: Outcome = await agent.arun(thread)
        if shadow is not None:
            assert await shadow.drain(timeout=30)
        return outcome

    return asyncio.run(main())


def accounted(shadow: Shadow, *, fired: int) -> None:
    """Every branch that was due has exactly one row, and the totals add up."""
    totals, rows = shadow.ledger.totals, shadow.ledger.rows
    assert totals.fired == fired, [(r.verdict, r.reason) for r in rows]
    assert totals.fired == totals.updates + totals.skipped + totals.failed + totals.shed
    assert len(rows) == fired
    assert len({(r.thread, r.tool_call_ids, r.branch) for r in rows}) == fired


def _question() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "How do glaciers fare?", "id": "q"}]}


def _shown(mode: str, part: Any) -> list[Any]:
    """A part of a stream; the shadow may add to `custom` alone, and an interrupt has no state."""
    if mode == "messages":
        return [(mode, *_plain([part[0]]))]
    return [(mode, _plain(part["messages"]))] if "messages" in part and mode == "values" else []


def _plain(messages: Any) -> tuple[Any, ...]:
    return tuple(
        (
            m.type,
            m.content,
            [(c["name"], c["args"], c["id"]) for c in getattr(m, "tool_calls", None) or ()],
            getattr(m, "tool_call_id", None),
            getattr(m, "usage_metadata", None) and m.usage_metadata["input_tokens"],
        )
        for m in messages
    )
