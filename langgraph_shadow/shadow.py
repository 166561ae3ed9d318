"""Shadow: the one object a user makes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import ValidationError

from langgraph_shadow.adapters.binding import attached, watched
from langgraph_shadow.adapters.callbacks import GuardHandler, ShadowCallbackHandler
from langgraph_shadow.adapters.findings import Findings
from langgraph_shadow.adapters.mending import Mending, stabilised
from langgraph_shadow.adapters.node import ToolWatch, wrap_tool_node
from langgraph_shadow.adapters.routing import Routing
from langgraph_shadow.adapters.runs import Runs
from langgraph_shadow.adapters.sight import Sight
from langgraph_shadow.branches.branch import Branch, user_update
from langgraph_shadow.branches.redaction import Redact
from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.delivery.ledger import Ledger
from langgraph_shadow.delivery.post import Post
from langgraph_shadow.delivery.sinks import EventFunction
from langgraph_shadow.delivery.traces import Traces
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.report import GuardMode
from langgraph_shadow.hosts import Hosts
from langgraph_shadow.runner.affinity import Affinity
from langgraph_shadow.runner.conversation import Conversations
from langgraph_shadow.runner.hints import Hints
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Launch, Limits, Options
from langgraph_shadow.runner.runner import Runner
from langgraph_shadow.trunk.capture import Capture

if TYPE_CHECKING:
    from langgraph_shadow.adapters.middleware import ShadowMiddleware

G = TypeVar("G")
M = TypeVar("M", bound=BaseChatModel)
OpenAIModel = TypeVar("OpenAIModel", bound=BaseChatOpenAI)
T = TypeVar("T")


class Shadow:
    """Runs branches beside an agent and guards the prefix that makes them cheap.

    One `Shadow` serves any number of graphs, threads and runs at once.

    Example:
        ```python
        shadow = Shadow(llm, branches=[user_update(language="Swedish")])
        graph = shadow.attach(builder.compile())
        async for mode, chunk in graph.astream(inputs, stream_mode=["messages", "custom"]):
            ...  # {"type": "shadow.update", "text": …} on "custom"
        await shadow.drain(timeout=5)
        print(shadow.ledger)
        ```
    """

    def __init__(
        self,
        llm: BaseChatOpenAI,
        *,
        branches: Sequence[Branch] | None = None,
        guard: GuardMode = "warn",
        launch: Launch = "follow",
        on_event: EventFunction | None = None,
        redact: Redact | None = None,
        affinity: Affinity | None = None,
        **limits: Unpack[Limits],
    ) -> None:
        """Set up a shadow.

        Args:
            llm: The model that branches ask. The orchestrator's own model gives mode `shared`,
                whose prompts are prefix-cache hits; another served model gives mode `mirror`.
            branches: What is asked of each tool batch; `[user_update()]` when left out.
            guard: What to do about a prompt that breaks the prefix: `off`, `observe`, `warn`,
                `reject` or `repair`.
            launch: When branches leave: `follow`, `gap` or `lead`.
            on_event: Called with every event, in a thread of its own; may be a coroutine function.
            redact: Sees each text before it is delivered and returns what to deliver, or None to
                withhold it. It never sees the prompt: changing that would break the prefix.
            affinity: How a router finds the replica that holds a thread's blocks, for example
                `Affinity.for_router("vllm-router")`. The requests of models given to `watch`,
                `stabilise` or the middleware carry it; callbacks alone cannot change a request.
            **limits: Any other field of `Options`, for example `timeout` or `max_in_flight`.

        Raises:
            TypeError: `llm` is not an OpenAI-compatible chat model.
            ValueError: An option is unknown or out of range; the message says which.
        """
        if not isinstance(llm, BaseChatOpenAI):
            msg = (
                f"Shadow needs the orchestrator's own ChatOpenAI (vLLM speaks its protocol), not "
                f"{type(llm).__name__}; pass the model itself, before bind_tools() or with_config()"
            )
            raise TypeError(msg)
        options = self._options = _options(guard=guard, launch=launch, **limits)
        self.branches = tuple(branches) if branches is not None else (user_update(),)
        _check_names(self.branches)
        self.ledger = Ledger()
        self._once = Once()
        self._runs = Runs()
        hosts = Hosts()
        self._post = Post(hosts, function=on_event)
        self._traces = Traces()
        self._affinity = affinity or Affinity()
        hints = Hints(self._affinity, self.ledger.returns)
        self._runner = Runner(
            llm,
            branches=self.branches,
            options=options,
            ledger=self.ledger,
            post=self._post,
            traces=self._traces,
            hosts=hosts,
            once=self._once,
            hints=hints,
            redact=redact,
        )
        self._routing = Routing(
            self._affinity,
            hints=hints,
            conversations=Conversations(
                self._affinity, errand=self._runner.errand, max_lines=options.max_threads
            ),
            llm=llm,
            errand=self._runner.errand,
            once=self._once,
        )
        self._mending = Mending(max_lines=options.max_threads) if guard == "repair" else None
        self._guard = Guard(mode=options.guard, max_threads=options.max_threads)
        self._sight = Sight(
            llm,
            runs=self._runs,
            capture=Capture(max_lines=options.max_threads),
            guard=self._guard,
            runner=self._runner,
            ledger=self.ledger,
            findings=Findings(
                guard=self._guard, runner=self._runner, ledger=self.ledger, post=self._post
            ),
            traces=self._traces,
            once=self._once,
            mending=self._mending,
            routing=self._routing,
        )
        self._tools = ToolWatch(self._sight, self._runs, self._once)
        # the veto goes last: langchain leaves the handlers after one that raises un-awaited
        self._handlers: tuple[BaseCallbackHandler, ...] = (
            ShadowCallbackHandler(self._sight, self._runs),
            GuardHandler(self._sight, veto=options.guard == "reject"),
        )

    @property
    def callbacks(self) -> list[BaseCallbackHandler]:
        """The handlers, for `config={"callbacks": shadow.callbacks}`."""
        return list(self._handlers)

    def attach(self, graph: G) -> G:
        """Return the compiled graph with the callbacks bound; the graph itself is unchanged.

        Raises:
            TypeError: `graph` has no `with_config`; compile it first.
        """
        return attached(graph, self._handlers)

    def watch(self, llm: M) -> M:
        """Return a copy of the model that carries the callbacks, for a hand-built graph.

        It shares the model's clients. Where the callbacks also come by `attach` or by config, each
        call is still seen once. With an `affinity`, its requests carry the session.
        """
        if isinstance(llm, BaseChatOpenAI):
            llm = self._routing.routed(llm)
        return watched(llm, self._handlers)

    def stabilise(self, llm: OpenAIModel) -> OpenAIModel:
        """Return a copy of the model that is watched, and whose prompts are repaired.

        Needs `guard="repair"`. Clocks and identifiers of the system prompt keep their first value
        and the fresh one moves to the end; tools and parallel results keep their first order; tool
        arguments are replayed in the model's own text. Each repair is an event and a ledger row.

        Raises:
            ValueError: The guard does not repair.
        """
        if self._mending is None:
            msg = f"stabilise() needs Shadow(..., guard='repair'), not {self._options.guard!r}"
            raise ValueError(msg)
        return stabilised(self.watch(llm), self._mending)

    def tool_node(self, inner: T) -> T:
        """Wrap a tool node, so that a batch is seen as soon as it is complete.

        Args:
            inner: A `ToolNode` (the type is kept), a function, a runnable or a compiled subgraph.

        Raises:
            TypeError: `inner` is nothing that LangGraph could run as a node.
        """
        return wrap_tool_node(inner, self._tools, each_call=self._options.prefill_ahead)

    def middleware(self) -> ShadowMiddleware:
        """Middleware for `create_agent`; its place in the list does not matter.

        Raises:
            ImportError: langchain is not installed; names the extra.
        """
        try:
            from langgraph_shadow.adapters.middleware import ShadowMiddleware
        except ModuleNotFoundError as error:
            msg = "shadow.middleware() needs langchain: pip install 'langgraph-shadow[middleware]'"
            raise ImportError(msg) from error
        return ShadowMiddleware(watch_model=self._watch_or_repair, tools=self._tools)

    def _watch_or_repair(self, llm: BaseChatModel) -> BaseChatModel:
        if self._mending is not None and isinstance(llm, BaseChatOpenAI):
            return self.stabilise(llm)
        return self.watch(llm)

    def events(self) -> AsyncIterator[ShadowEvent]:
        """Iterate over events from now on, until `aclose`; works beside or without a stream."""
        return self._post.subscribe()

    def expect_break(self, thread: str, reason: str) -> None:
        """Announce a deliberate break, for example a compaction: the next one is recorded only."""
        self._guard.expect_break(thread, reason)

    async def drain(self, *, timeout: float = 5.0) -> bool:
        """Let waiting branches go and wait for them, at most `timeout` seconds.

        Returns:
            False when some were still running; they count as late when they come.
        """
        end = time.monotonic() + timeout
        done = await self._runner.drain(timeout)
        await asyncio.to_thread(self._join, end)
        return done

    def drain_sync(self, *, timeout: float = 5.0) -> bool:
        """The same for code without an event loop."""
        end = time.monotonic() + timeout
        done = self._runner.drain_sync(timeout)
        self._join(end)
        return done

    def _join(self, end: float) -> None:
        """Wait, until `end`, for the user's function and the traces to have seen everything."""
        for room in (self._post, self._traces):
            room.join(max(0.0, end - time.monotonic()))

    async def aclose(self) -> None:
        """End the event iterations and close the connections."""
        self._post.close()
        await self._runner.aclose()


def _check_names(branches: Sequence[Branch]) -> None:
    names = [b.name for b in branches]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        msg = f"two branches are named {twice!r}; give each its own name, it is the ledger's key"
        raise ValueError(msg)


def _options(**values: Any) -> Options:
    try:
        return Options(**values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']} (got {e['input']!r})"
            for e in error.errors()
        )
        msg = f"Shadow cannot be set up: {problems}"
        raise ValueError(msg) from None
