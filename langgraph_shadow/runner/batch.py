"""One tool batch on its way to its branches: what is known of it, and what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.delivery.tracers import Tracer
from langgraph_shadow.delivery.traces import Cause
from langgraph_shadow.hosts import Host
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.runner.options import Launch, Options
from langgraph_shadow.trunk.model import ToolBatch, Trunk

GRACE_S = 1.0
"""Seconds after a run's end in which `drain` still saves what the final answer has overtaken."""


@dataclass(eq=False, slots=True)
class Moment:
    """Something that happens once, seen from any thread, awaited on the batch's loop."""

    host: Host
    at: float | None = None
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def happen(self) -> None:
        """Mark that it happened, now; later calls change nothing."""
        if self.at is None:
            self.at = time.perf_counter()
            self.host.signal(self._event)

    async def wait(self) -> None:
        """Wait until it has happened."""
        await self._event.wait()


@dataclass(eq=False, slots=True)
class Batch:
    """A complete tool batch whose branches have not finished.

    Attributes:
        trunk: The trunk that the branches run against: predicted first, exact once seen.
        sent: The trunk that the orchestrator sent before this batch.
        asked: The trunk of the orchestrator's next request, once that was seen.
        tools: The batch itself, in call order.
        index: Tool batches of this history before this one.
        origin: URL of the orchestrator's server, as its model call named it.
        route: What the branches repeat of the orchestrator's request.
        root: The graph run that it belongs to, when it can be seen.
        step: LangGraph's step, when known.
        target: The run's `custom` stream.
        streams: Whether the orchestrator's calls are known to stream.
        launched: Whether its branches have left, so that its trunk may not change any more.
        run_failed: Whether the graph's run ended with an error or was cancelled.
        final: Whether the orchestrator has since given an answer without tool calls.
        cause: The model call that asked for the tools, as branches' traces name it.
        tracers: Where branches are traced to: what was switched on when the batch was seen.
        finished: When the batch was complete (`time.perf_counter`).
        predicted_right: Whether the predicted trunk is what was then sent; None when not known.
        seen: The orchestrator's next request was seen, and `trunk` is what it sent.
        first_token: That request's first token came (or it ended, or failed).
        answered: That request's answer has ended.
        run_over: The graph's run has ended; nothing else will come.
        went_on: The loop went on after an answer that looked final.
        drained: The user waits for its branches, whenever they come.
    """

    trunk: Trunk
    sent: Trunk
    tools: ToolBatch
    index: int
    host: Host
    origin: str
    route: Route
    root: UUID | None
    step: int | None
    target: StreamTarget | None
    streams: bool
    asked: Trunk | None = None
    launched: bool = False
    run_failed: bool = False
    final: bool = False
    cause: Cause | None = None
    tracers: tuple[Tracer, ...] = ()
    finished: float = field(default_factory=time.perf_counter)
    predicted_right: bool | None = None
    seen: Moment = field(init=False)
    first_token: Moment = field(init=False)
    answered: Moment = field(init=False)
    run_over: Moment = field(init=False)
    went_on: Moment = field(init=False)
    drained: Moment = field(init=False)

    def __post_init__(self) -> None:
        self.seen = Moment(self.host)
        self.first_token = Moment(self.host)
        self.answered = Moment(self.host)
        self.run_over = Moment(self.host)
        self.went_on = Moment(self.host)
        self.drained = Moment(self.host)

    def saw_request(self, trunk: Trunk, *, streams: bool, target: StreamTarget | None) -> None:
        """The orchestrator's next request is this trunk: exact from now on."""
        if self.seen.at is None and not self.trunk.exact:
            self.predicted_right = self.trunk.digests[-1] == trunk.digests[-1]
        self.asked = trunk
        if not self.launched:
            self.trunk = trunk
            self.streams = streams
            self.target = target or self.target
        self.seen.happen()

    async def wait_for_request(self, options: Options) -> None:
        """Wait until the orchestrator's next request is seen, at most the deadline."""
        if options.launch != "lead":
            await self._first_of(self.seen, timeout=options.deadline)

    async def wait_for_launch(self, options: Options) -> None:
        """Wait, once the request was seen, until the launch mode lets the branches go."""
        if options.launch == "lead" or self.seen.at is None:
            return
        if options.launch == "gap":
            await self.wait_for_gap(options)
        elif self.streams:
            await self._first_of(self.first_token, timeout=options.deadline)
        else:
            waited = time.perf_counter() - self.seen.at
            await self._first_of(self.first_token, timeout=max(0.0, options.head_start - waited))

    async def wait_for_gap(self, options: Options) -> None:
        """Wait until the orchestrator's next answer has ended."""
        await self._first_of(self.answered, timeout=options.deadline)

    async def wait_if_final(self, options: Options) -> None:
        """Hold a branch that would come after the final answer, unless the loop goes on."""
        if self.final and self.root is not None and options.late == "cancel":
            await wait_any((self.went_on, self.drained), timeout=options.deadline)

    async def overtaken(self) -> bool:
        """Wait for the run's end; True when the final answer came first and nobody drains."""
        await self.run_over.wait()
        if self.final:
            await wait_any((self.drained,), timeout=GRACE_S)
        return self.final and self.drained.at is None

    async def _first_of(self, moment: Moment, *, timeout: float) -> None:
        await wait_any((moment, self.run_over), timeout=timeout)

    @property
    def abandoned(self) -> bool:
        """Whether the run failed before the orchestrator asked again."""
        return self.run_failed and self.seen.at is None

    def computed(self, launch: Launch) -> Trunk:
        """The newest trunk of this history that the server has computed.

        A request's blocks come bit by bit, so it counts from its first token on. Where none can be
        seen, it counts as soon as the branch has waited for it, which `lead` does not.
        """
        unseen = not self.streams and launch != "lead"
        if self.asked is not None and (unseen or self.first_token.at is not None):
            return self.asked
        return self.sent

    def lag_ms(self) -> float:
        """Milliseconds since the batch was complete."""
        return (time.perf_counter() - self.finished) * 1e3


async def wait_any(moments: Iterable[Moment], *, timeout: float) -> None:
    """Wait until one of the moments has happened, at most `timeout` seconds."""
    tasks = [asyncio.ensure_future(m.wait()) for m in moments]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
