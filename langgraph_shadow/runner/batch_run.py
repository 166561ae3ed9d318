"""The branches of one tool batch: the first warms the cache for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from langgraph_shadow.branches.branch import Branch
from langgraph_shadow.branches.redaction import Redact, apply_redaction
from langgraph_shadow.branches.verdict import Verdict
from langgraph_shadow.delivery.events import EventType, ShadowEvent
from langgraph_shadow.delivery.ledger import Ledger, LedgerRow, Mode, Outcome
from langgraph_shadow.delivery.post import Post
from langgraph_shadow.delivery.traces import BranchTrace, Traces
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.branch_run import BranchOutcome, BranchRun
from langgraph_shadow.runner.budget import Refusal
from langgraph_shadow.runner.slots import Slots

_EVENTS: dict[Outcome, EventType] = {
    "update": "shadow.update",
    "skip": "shadow.skip",
    "failed": "shadow.failed",
    "shed": "shadow.shed",
}


@dataclass(slots=True)
class BatchRun:
    """Runs every branch that is due for a batch and records each exactly once.

    Attributes:
        batch: The batch.
        branches: The branches that are due.
        launch: The launch mode, for the ledger.
        mode: `shared` or `mirror`.
        ledger: Where rows go.
        post: Where events go.
        traces: Traces the branches that left.
        slots: Places for branches in flight.
        redact: The user's last look at each text.
    """

    batch: Batch
    branches: Sequence[Branch]
    launch: str
    mode: Mode
    ledger: Ledger
    post: Post
    traces: Traces
    slots: Slots
    redact: Redact | None = None
    _recorded: set[str] = field(default_factory=set)
    _traced: dict[str, BranchTrace] = field(default_factory=dict)

    async def run(self, runner: BranchRun) -> None:
        """Run the first branch to its first token, then the others beside it.

        Together they would each compute the newest tokens for themselves; one after the other
        they share them (facts/vllm.md, "Two requests at once").
        """
        due = list(self.branches)
        if not due:
            return
        computed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._one(runner, due[0], computed))
            await computed.wait()
            for branch in due[1:]:
                tasks.create_task(self._one(runner, branch, asyncio.Event()))

    def shed_rest(self, reason: str) -> None:
        """Record every branch that has no row yet as shed."""
        outcome = BranchOutcome(Verdict(kind="failed", reason=reason))
        for branch in self.branches:
            self.record(branch, outcome, "shed")

    async def _one(self, runner: BranchRun, branch: Branch, computed: asyncio.Event) -> None:
        try:
            if not await self.slots.acquire(self.batch.host):
                self._shed(branch, runner, Refusal("max_waiting", "newer batches were waiting"))
                return
            try:
                refusal = await runner.refusal() or await runner.gone(branch)
                if refusal is not None:
                    self._shed(branch, runner, refusal)
                    return
                self._trace(branch, runner)
                outcome = await runner.run(branch, on_first_token=computed.set)
            finally:
                self.slots.release(self.batch.host)
            verdict = apply_redaction(outcome.verdict, self.redact)
            self.record(branch, replace(outcome, verdict=verdict), verdict.kind)
        finally:
            computed.set()

    def _shed(self, branch: Branch, runner: BranchRun, refusal: Refusal) -> None:
        runner.budget.say(refusal)
        verdict = Verdict(kind="failed", reason=refusal.reason)
        self.record(branch, BranchOutcome(verdict), "shed")

    def _trace(self, branch: Branch, runner: BranchRun) -> None:
        trace = self.traces.open(
            branch,
            runner.trunk,
            step=self.batch.step,
            cause=self.batch.cause,
            tracers=self.batch.tracers,
        )
        if trace is not None:
            self._traced[branch.name] = trace

    def record(self, branch: Branch, outcome: BranchOutcome, kind: Outcome) -> None:
        """Deliver one branch's event and write its row, once."""
        if branch.name in self._recorded:
            return
        self._recorded.add(branch.name)
        batch, verdict, answer = self.batch, outcome.verdict, outcome.answer
        key = batch.trunk.key
        late = batch.run_over.at is not None
        lag = batch.lag_ms()
        trace = self._traced.pop(branch.name, None)
        run_id = str(trace.run_id) if trace is not None else None
        caused = str(batch.cause.run_id) if batch.cause is not None else None
        event = ShadowEvent(
            type=_EVENTS[kind],
            branch=branch.name,
            text=verdict.text,
            data=verdict.data,
            reason=verdict.reason,
            thread=key.thread,
            namespace=key.namespace,
            node=key.node,
            step=batch.step,
            tool_call_ids=batch.tools.call_ids,
            lag_ms=round(lag, 1),
            run_id=run_id,
            shadow_of_run=caused,
        )
        taken = self.post.deliver(event, batch.target)
        row = LedgerRow(
            branch=branch.name,
            mode=self.mode,
            thread=key.thread,
            namespace=key.namespace,
            tool_call_ids=batch.tools.call_ids,
            launch=self.launch,
            exact=batch.trunk.exact,
            verdict=kind,
            carrier=outcome.aligned.carrier if outcome.aligned else "",
            kept=outcome.kept,
            prompt_tokens=answer.prompt_tokens if answer else None,
            predicted=outcome.predicted,
            cached=answer.cached if answer else None,
            miss=outcome.miss,
            generated=answer.generated if answer else None,
            ttft_ms=answer.ttft_ms if answer else None,
            total_ms=answer.total_ms if answer else None,
            lag_ms=lag,
            text=verdict.text,
            reason=verdict.reason,
            delivered=kind == "update" and taken and not late,
            late=late,
            run_id=run_id,
            shadow_of_run=caused,
        )
        self.ledger.add(row)
        if trace is not None:
            trace.end(row, verdict.data)
