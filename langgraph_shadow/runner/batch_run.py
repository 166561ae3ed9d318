"""The branches of one tool batch: the first warms the cache for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from langgraph_shadow.branches.branch import BatchView, Branch
from langgraph_shadow.branches.verdict import Verdict
from langgraph_shadow.delivery.events import EventType, ShadowEvent
from langgraph_shadow.delivery.ledger import Ledger, LedgerRow, Mode, Outcome
from langgraph_shadow.delivery.post import Post
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.branch_run import BranchOutcome, BranchRun
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
        slots: Places for branches in flight.
    """

    batch: Batch
    branches: Sequence[Branch]
    launch: str
    mode: Mode
    ledger: Ledger
    post: Post
    slots: Slots

    async def run(self, make: Callable[[], BranchRun]) -> None:
        """Run the first branch to its first token, then the others beside it.

        Together they would each compute the newest tokens for themselves; one after the other
        they share them (facts/vllm.md, "Two requests at once").
        """
        due = list(self.branches)
        if not due:
            return
        runner = make()
        computed = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []
        try:
            first = asyncio.create_task(self._one(runner, due[0], computed))
            tasks.append(first)
            await computed.wait()
            tasks += [asyncio.create_task(self._one(runner, b, asyncio.Event())) for b in due[1:]]
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            for branch in due[len(tasks) :]:
                self.record(branch, BranchOutcome(_LOOP_ENDED), "shed")
            raise

    async def _one(self, runner: BranchRun, branch: Branch, computed: asyncio.Event) -> None:
        try:
            if not await self.slots.acquire(self.batch.host):
                reason = "newer batches were waiting"
                self.record(branch, BranchOutcome(Verdict(kind="failed", reason=reason)), "shed")
                return
            try:
                outcome = await runner.run(branch, on_first_token=computed.set)
            finally:
                self.slots.release()
            self.record(branch, outcome, outcome.verdict.kind)
        except asyncio.CancelledError:
            self.record(branch, BranchOutcome(_LOOP_ENDED), "shed")
            raise
        finally:
            computed.set()

    def record(self, branch: Branch, outcome: BranchOutcome, kind: Outcome) -> None:
        """Deliver one branch's event and write its row."""
        batch, verdict, answer = self.batch, outcome.verdict, outcome.answer
        key = batch.trunk.key
        late = batch.run_over.at is not None
        lag = batch.lag_ms()
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
        )
        taken = self.post.deliver(event, batch.target)
        self.ledger.add(
            LedgerRow(
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
                generated=answer.generated if answer else None,
                ttft_ms=answer.ttft_ms if answer else None,
                lag_ms=lag,
                text=verdict.text,
                reason=verdict.reason,
                delivered=kind == "update" and taken and not late,
                late=late,
            )
        )


_LOOP_ENDED = Verdict(
    kind="failed",
    reason="the event loop ended before the branch had finished; await shadow.drain() first",
)


def view_of(batch: Batch) -> BatchView:
    """What a branch's `when` may look at."""
    key = batch.trunk.key
    return BatchView(
        thread=key.thread,
        namespace=key.namespace,
        node=key.node,
        tool_names=batch.tools.names,
        tool_call_ids=batch.tools.call_ids,
        index=batch.index,
    )
