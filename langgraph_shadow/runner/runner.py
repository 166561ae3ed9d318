"""Runs branches beside the graph without being felt: bounded, isolated, drained at the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.branches.branch import Branch
from langgraph_shadow.branches.redaction import Redact
from langgraph_shadow.delivery.ledger import Ledger, Mode
from langgraph_shadow.delivery.post import Post
from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.delivery.traces import Traces
from langgraph_shadow.hosts import Host, Hosts
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.batch_run import BatchRun
from langgraph_shadow.runner.branch_run import BranchRun
from langgraph_shadow.runner.budget import Budget
from langgraph_shadow.runner.due import due
from langgraph_shadow.runner.errands import Errands, Work
from langgraph_shadow.runner.hints import Hints
from langgraph_shadow.runner.intake import Intake
from langgraph_shadow.runner.kv_events import KVEvents, Residency
from langgraph_shadow.runner.lines import Call
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Options
from langgraph_shadow.runner.overtaken import unless_overtaken
from langgraph_shadow.runner.server import Server
from langgraph_shadow.runner.slots import Slots
from langgraph_shadow.runner.underway import Underway
from langgraph_shadow.runner.warming import warm
from langgraph_shadow.trunk.model import PROMPT_FIELDS, Message, Trunk

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI

log = logging.getLogger("langgraph_shadow.runner")


def _nothing() -> None:
    return None


class Runner:
    """Takes what the adapters saw, and runs the branches of each complete tool batch once."""

    def __init__(
        self,
        llm: BaseChatOpenAI,
        *,
        branches: Sequence[Branch],
        options: Options,
        ledger: Ledger,
        post: Post,
        traces: Traces,
        hosts: Hosts,
        once: Once,
        hints: Hints,
        redact: Redact | None = None,
    ) -> None:
        """Set up a runner.

        Args:
            llm: The model that branches ask.
            branches: What is asked of each batch, in this order.
            options: The limits.
            ledger: Where rows go.
            post: Where events go.
            traces: Traces the branches.
            hosts: The event loops.
            once: For warnings.
            hints: What a router's scheduler is told of a branch.
            redact: The user's last look at each text.
        """
        self._llm = llm
        self._branches = tuple(branches)
        self._options = options
        self._ledger = ledger
        self._post = post
        self._traces = traces
        self._hosts = hosts
        self._once = once
        self._hints = hints
        self._residency, self._events = _listen(options.kv_events)
        if self._events is not None:
            weakref.finalize(self, self._events.stop)
        self._redact = redact
        self._base_url = str(llm.root_client.base_url).rstrip("/")
        self._intake = Intake(llm, max_lines=options.max_threads)
        self._ladder = Ladder(max_new=options.max_new_tokens, splice=options.splice)
        self._budget = Budget(options, once=once)
        self._slots = Slots(places=options.max_in_flight, waiting=options.max_waiting)
        # aligning ahead asks the server too, so no more batches do it at once than may run
        self._aligning = threading.BoundedSemaphore(options.max_in_flight)
        self._servers: weakref.WeakKeyDictionary[Host, Server] = weakref.WeakKeyDictionary()
        self._errands = Errands(self._server, timeout=options.timeout)
        self._underway = Underway(
            prepare=self._batch_run, work=self._work, finished=self._intake.finished, once=once
        )

    def model_started(self, call: Call, message_ids: Sequence[str | None]) -> None:
        """A model call of the orchestrator is about to be sent."""
        self._underway.launch(self._intake.started(call, self._hosts.current(), message_ids))

    def model_token(self, run_id: UUID) -> None:
        """A model call streamed a token."""
        call = self._intake.token(run_id)
        # only calls after tools are alike: the first one of a turn may compute a whole prompt
        if call is not None and call.trunk.batch is not None:
            self._budget.first_token(call.started)

    def model_ended(self, run_id: UUID, message: BaseMessage | None) -> Call | None:
        """A model call ended, with its answer or (None) with an error; returns it."""
        return self._intake.ended(run_id, message)

    def tools_finished(
        self,
        thread: str,
        namespace: str,
        results: Mapping[str, Message],
        *,
        assistant: BaseMessage | None = None,
    ) -> bool:
        """Tool results came in; False when no model call of this history was ever seen."""
        if not self._intake.knows(thread, namespace):
            return False
        batch = self._intake.results(
            thread,
            namespace,
            results,
            assistant=assistant,
            host=self._hosts.current(),
            target=StreamTarget.capture(),
        )
        if batch is not None:
            batch.tracers = self._traces.tracers()
        self._underway.launch(batch)
        if batch is None and self._options.prefill_ahead:
            self._prefill_ahead(thread, namespace, results)
        return True

    def _prefill_ahead(self, thread: str, namespace: str, results: Mapping[str, Message]) -> None:
        ready = self._intake.ready_ahead(thread, namespace, results)
        if ready is None or ready[0].model != self._llm.model_name:
            return
        host = self._hosts.current()

        async def prefill() -> None:
            trunk, route = ready
            async with self._server(host) as server:
                await warm(
                    Prompt.of(trunk),
                    server,
                    route=route,
                    options=self._options,
                    budget=self._budget,
                    once=self._once,
                )

        host.spawn(prefill)

    def errand(self, work: Work, otherwise: Callable[[], None] = _nothing) -> None:
        """Do something with the server in the background; `otherwise` when it cannot be done."""
        self._errands.run(self._hosts.current(), work, otherwise)

    def run_over(self, root: UUID, *, failed: bool) -> set[str]:
        """A graph run ended, or failed or was cancelled; returns its threads."""
        return self._intake.run_over(root, failed=failed)

    async def drain(self, timeout: float) -> bool:
        """Let waiting batches go and wait for all; False when some were still running."""
        futures = self._underway.release() + self._errands.open()
        if futures:
            await asyncio.wait([asyncio.wrap_future(f) for f in futures], timeout=timeout)
        return all(f.done() for f in futures)

    def drain_sync(self, timeout: float) -> bool:
        """The same for code without an event loop."""
        futures = self._underway.release() + self._errands.open()
        concurrent.futures.wait(futures, timeout=timeout)
        return all(f.done() for f in futures)

    async def aclose(self) -> None:
        """Close the connections of every event loop."""
        if self._events is not None:
            self._events.stop()
        here = self._hosts.current()
        for host, server in list(self._servers.items()):
            if host is here:
                await server.engine.rest()
            elif host.alive:
                host.spawn(server.engine.rest)

    def _batch_run(self, batch: Batch) -> BatchRun:
        return BatchRun(
            batch=batch,
            branches=due(self._branches, batch, self._once),
            launch=self._options.launch,
            mode=self._mode(batch),
            ledger=self._ledger,
            post=self._post,
            traces=self._traces,
            slots=self._slots,
            redact=self._redact,
        )

    async def _work(self, run: BatchRun) -> None:
        closed = self._budget.closed()
        if closed is not None:
            self._budget.say(closed)
            run.shed_rest(closed.reason)
        elif self._options.late == "deliver":
            await self._ask(run)
        elif not await unless_overtaken(run.batch, self._ask(run)):
            run.shed_rest("the answer came first")

    async def _ask(self, run: BatchRun) -> None:
        batch = run.batch
        await batch.wait_for_request(self._options)
        if batch.abandoned:  # the run failed before the orchestrator asked again: nobody waits
            run.shed_rest("the run failed or was cancelled")
            return
        async with self._server(batch.host) as server:
            await run.run(await self._prepared(run, server))

    async def _prepared(self, run: BatchRun, server: Server) -> BranchRun:
        """Wait for the launch, and use the time: branches are aligned while the request runs."""
        batch = run.batch
        branches = self._branch_run(run, server)
        if run.mode == "mirror" and self._options.warm_up:
            await branches.warm()
        if self._aligning.acquire(blocking=False):
            try:
                await branches.prepare(run.branches)
            finally:
                self._aligning.release()
        await batch.wait_for_launch(self._options)
        if run.launch != "gap" and await branches.refusal():
            run.launch = "gap"
            await batch.wait_for_gap(self._options)
        if run.launch == "gap":
            await batch.wait_if_final(self._options)
        batch.launched = True
        if self._asked(run) != branches.trunk:  # the model call was made anew meanwhile
            branches = self._branch_run(run, server)
        return branches

    def _branch_run(self, run: BatchRun, server: Server) -> BranchRun:
        batch = run.batch
        line = self._intake.line(batch.trunk.key.thread, batch.trunk.key.namespace)

        def sent() -> list[Prompt]:
            if run.mode == "shared":
                return [Prompt.of(batch.computed(self._options.launch))]
            return list(line.mirrored)

        def certain() -> Prompt | None:
            if run.mode == "mirror" or batch.streams or batch.first_token.at is not None:
                return None
            return Prompt.of(batch.sent)

        def keep(prompt: Prompt) -> None:
            if run.mode == "mirror":
                line.mirrored.append(prompt)

        def hint(branch: Branch) -> Mapping[str, Any]:
            if run.mode == "mirror":  # another server, perhaps behind no router at all
                return {}
            key = batch.trunk.key
            return self._hints.branch(key, branch, seconds=self._options.timeout)

        return BranchRun(
            server=server,
            ladder=self._ladder,
            options=self._options,
            budget=self._budget,
            once=self._once,
            trunk=self._asked(run),
            route=batch.route,
            sent=sent,
            certain=certain,
            keep=keep,
            question=_question(batch.trunk),
            hints=hint,
            residency=self._residency if run.mode == "shared" else None,
        )

    def _mode(self, batch: Batch) -> Mode:
        same_model = batch.trunk.model == self._llm.model_name
        same_server = not batch.origin or batch.origin == self._base_url
        return "shared" if same_model and same_server else "mirror"

    def _asked(self, run: BatchRun) -> Trunk:
        """The trunk as the branches' model is asked: a mirror has request fields of its own."""
        trunk = run.batch.trunk
        if run.mode == "shared":
            return trunk
        fields = {
            **{k: v for k, v in (self._llm.extra_body or {}).items() if k in PROMPT_FIELDS},
            "reasoning_effort": self._llm.reasoning_effort,
        }
        return Trunk.build(
            key=trunk.key,
            model=self._llm.model_name,
            messages=trunk.messages,
            tools=trunk.tools,
            fields=fields,
            exact=trunk.exact,
        )

    @contextlib.asynccontextmanager
    async def _server(self, host: Host) -> AsyncIterator[Server]:
        """The server as seen from this loop; the first user of a loop finds it out."""
        server = self._servers.get(host)
        if server is None:
            server = self._servers[host] = Server(self._llm, timeout=self._options.timeout)
        async with server.use():
            await server.find_out(self._once)
            yield server


def _listen(endpoint: str | None) -> tuple[Residency | None, KVEvents | None]:
    """Listen to a server's KV events, where an endpoint is given."""
    if endpoint is None:
        return None, None
    residency = Residency()
    events = KVEvents(endpoint, residency)
    events.start()
    return residency, events


def _question(trunk: Trunk) -> str:
    asked = next((m for m in reversed(trunk.messages) if m["role"] == "user"), {})
    content = asked.get("content")
    return content if isinstance(content, str) else ""
