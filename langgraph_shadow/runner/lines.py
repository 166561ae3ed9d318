"""One history's state: its model calls, its answers that wait for results, its batches."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from uuid import UUID

from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.delivery.tracers import Tracer
from langgraph_shadow.delivery.traces import Cause
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.trunk.model import Message, Trunk

LineKey = tuple[str, str]
"""Thread and checkpoint namespace: the history that tool batches belong to."""


@dataclass(eq=False, slots=True)
class Call:
    """One model call of the orchestrator, from its start to its answer."""

    run_id: UUID
    trunk: Trunk
    origin: str
    route: Route
    root: UUID | None
    step: int | None
    target: StreamTarget | None
    streams: bool
    cause: Cause | None = None
    tracers: tuple[Tracer, ...] = ()
    started: float = field(default_factory=time.perf_counter)
    first_token_at: float | None = None
    batch: Batch | None = None


@dataclass(eq=False, slots=True)
class Answered:
    """An assistant message with tool calls, waiting for its results."""

    call: Call
    message: Message
    message_id: str | None
    call_ids: tuple[str, ...]
    results: dict[str, Message] = field(default_factory=dict)
    ahead: int = 0


@dataclass(eq=False, slots=True)
class Line:
    """The state of one history.

    Attributes:
        answers: Assistant messages whose tool results are awaited.
        fired: The batches that were fired, by call ids: their place and assistant message.
        pending: The batches whose branches have not finished.
        mirrored: The newest prompts that a mirror model was sent; batches may overtake each other.
        last_call: The newest model call; None when nothing more can come of it.
        known: Whether any model call was seen.
        final: Whether the newest answer had no tool calls, so that no results are awaited.
        count: Batches fired before the newest one.
        streams: Whether its model calls are known to stream.
    """

    answers: list[Answered] = field(default_factory=list)
    fired: OrderedDict[tuple[str, ...], tuple[int, str | None]] = field(default_factory=OrderedDict)
    pending: list[Batch] = field(default_factory=list)
    mirrored: deque[Prompt] = field(default_factory=lambda: deque(maxlen=3))
    last_call: Call | None = None
    known: bool = False
    final: bool = False
    count: int = -1
    streams: bool = False

    def rest(self, root: UUID | None) -> bool:
        """Let go of a run that is over; True when this line was part of it.

        A stream target holds the whole context of its run. Calls whose tools were interrupted are
        needed when the run is resumed.
        """
        calls = [a.call for a in self.answers]
        own = [c for c in (self.last_call, *calls) if c is not None and c.root == root]
        for call in own:
            call.target, call.tracers = None, ()
        if own and self.final and root is not None:
            self.answers.clear()
            self.last_call = None
        return bool(own)

    def goes_on(self) -> None:
        """The answer that looked final was not: some graphs make tool calls out of text."""
        self.final = False
        for batch in self.pending:
            if batch.final:
                batch.final = False
                batch.went_on.happen()
