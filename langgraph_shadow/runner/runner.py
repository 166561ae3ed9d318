"""Runs branches beside the graph without being felt: bounded, isolated, drained at the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.branches.branch import Branch
from langgraph_shadow.delivery.ledger import Ledger, Mode
from langgraph_shadow.delivery.post import Post
from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.hosts import Host, Hosts
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.batch_run import BatchRun, view_of
from langgraph_shadow.runner.branch_run import BranchRun, warm
from langgraph_shadow.runner.intake import Call, Intake
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Options
from langgraph_shadow.runner.server import Server
from langgraph_shadow.runner.slots import Slots
from langgraph_shadow.trunk.model import PROMPT_FIELDS, Message, Trunk

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI

log = logging.getLogger("langgraph_shadow.runner")


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
        hosts: Hosts,
        once: Once,
    ) -> None:
        """Set up a runner.

        Args:
            llm: The model that branches ask.
            branches: What is asked of each batch, in this order.
            options: The limits.
            ledger: Where rows go.
            post: Where events go.
            hosts: The event loops.
            once: For warnings.
        """
        self._llm = llm
        self._branches = tuple(branches)
        self._options = options
        self._ledger = ledger
        self._post = post
        self._hosts = hosts
        self._once = once
        self._base_url = str(llm.root_client.base_url).rstrip("/")
        self._intake = Intake(llm, max_lines=options.max_threads)
        self._ladder = Ladder(max_new=options.max_new_tokens, splice=options.splice)
        self._slots = Slots(places=options.max_in_flight, waiting=options.max_waiting)
        self._servers: weakref.WeakKeyDictionary[Host, asyncio.Task[Server]] = (
            weakref.WeakKeyDictionary()
        )
        self._active: dict[Batch, concurrent.futures.Future[None]] = {}
        self._lock = threading.Lock()

    def model_started(self, call: Call, message_ids: Sequence[str | None]) -> None:
        """A model call of the orchestrator is about to be sent."""
        self._launch(self._intake.started(call, self._hosts.current(), message_ids))

    def model_token(self, run_id: UUID) -> None:
        """A model call streamed a token."""
        self._intake.token(run_id)

    def model_ended(self, run_id: UUID, message: BaseMessage | None) -> None:
        """A model call ended, with its answer or (None) with an error."""
        self._intake.ended(run_id, message)

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
        self._launch(batch)
        if batch is None and self._options.prefill_ahead:
            self._prefill_ahead(thread, namespace, results)
        return True

    def _prefill_ahead(self, thread: str, namespace: str, results: Mapping[str, Message]) -> None:
        ready = self._intake.ready_ahead(thread, namespace, results)
        if ready is None or ready[0].model != self._llm.model_name:
            return
        host = self._hosts.current()

        async def prefill() -> None:
            trunk, affinity = ready
            server = await self._server(host)
            await warm(
                Prompt.of(trunk), server, affinity=affinity, options=self._options, once=self._once
            )

        host.spawn(prefill)

    def run_over(self, root: UUID, *, failed: bool) -> None:
        """A graph run ended, or failed or was cancelled."""
        self._intake.run_over(root, failed=failed)

    async def drain(self, timeout: float) -> bool:
        """Let waiting batches go and wait for all; False when some were still running."""
        futures = self._release_all()
        if futures:
            await asyncio.wait([asyncio.wrap_future(f) for f in futures], timeout=timeout)
        return self._cut_off(futures)

    def drain_sync(self, timeout: float) -> bool:
        """The same for code without an event loop."""
        futures = self._release_all()
        concurrent.futures.wait(futures, timeout=timeout)
        return self._cut_off(futures)

    async def aclose(self) -> None:
        """Close the connections of every event loop."""
        for server in list(self._servers.values()):
            if server.done() and not server.cancelled() and server.exception() is None:
                await server.result().engine.aclose()

    def _launch(self, batch: Batch | None) -> None:
        if batch is None:
            return
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            self._active[batch] = done
        if not batch.host.spawn(lambda: self._run(batch, done)):
            self._close(batch, done)

    def _close(self, batch: Batch, done: concurrent.futures.Future[None]) -> None:
        with self._lock:
            self._active.pop(batch, None)
        self._intake.finished(batch)
        if not done.done():
            done.set_result(None)

    def _release_all(self) -> list[concurrent.futures.Future[None]]:
        with self._lock:
            active = dict(self._active)
        for batch in active:
            batch.run_over.happen()
        return list(active.values())

    def _cut_off(self, futures: Sequence[concurrent.futures.Future[None]]) -> bool:
        return all(f.done() for f in futures)

    async def _run(self, batch: Batch, done: concurrent.futures.Future[None]) -> None:
        run = BatchRun(
            batch=batch,
            branches=self._due(batch),
            launch=self._options.launch,
            mode=self._mode(batch),
            ledger=self._ledger,
            post=self._post,
            slots=self._slots,
        )
        try:
            branches = await self._prepared(run)
            if branches is None:
                run.shed_rest("the run failed or was cancelled")
            else:
                await run.run(branches)
        except asyncio.CancelledError:
            run.shed_rest("the event loop ended first; await shadow.drain() before it does")
            raise
        except Exception as error:
            self._once.warn(log, f"bug-{type(error).__name__}", "a batch failed: %r", error)
            run.shed_rest(f"{type(error).__name__}: {error}")
        finally:
            self._close(batch, done)

    async def _prepared(self, run: BatchRun) -> BranchRun | None:
        """Wait for the launch, and use the time: branches are aligned while the request runs.

        Returns:
            None when the run failed before the orchestrator asked again: nobody waits for news.
        """
        batch = run.batch
        await batch.wait_for_request(self._options)
        if batch.abandoned:
            return None
        server = await self._server(batch.host)
        branches = self._branch_run(run, server)
        if run.mode == "mirror" and self._options.warm_up:
            await branches.warm()
        await branches.prepare(run.branches)
        await batch.wait_for_launch(self._options)
        batch.launched = True
        if self._asked(run) != branches.trunk:  # the model call was made anew meanwhile
            branches = self._branch_run(run, server)
        return branches

    def _branch_run(self, run: BatchRun, server: Server) -> BranchRun:
        batch = run.batch
        line = self._intake.line(batch.trunk.key.thread, batch.trunk.key.namespace)

        def sent() -> list[Prompt]:
            if run.mode == "shared":
                return [Prompt.of(batch.sent)]
            return [line.mirrored] if line.mirrored is not None else []

        def keep(prompt: Prompt) -> None:
            line.mirrored = prompt

        return BranchRun(
            server=server,
            ladder=self._ladder,
            options=self._options,
            once=self._once,
            trunk=self._asked(run),
            affinity=batch.affinity,
            sent=sent,
            keep=keep,
            question=_question(batch.trunk),
        )

    def _due(self, batch: Batch) -> list[Branch]:
        view = view_of(batch)
        due = []
        for branch in self._branches:
            try:
                if branch.when is None or branch.when(view):
                    due.append(branch)
            except Exception as error:
                self._once.warn(
                    log,
                    f"when-{branch.name}",
                    "the `when` of branch %r raised %r; the branch is left out",
                    branch.name,
                    error,
                )
        return due

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

    async def _server(self, host: Host) -> Server:
        """The server as seen from this loop; the first batch of a loop finds it out."""
        task = self._servers.get(host)
        if task is None:
            found = Server.find_out(self._llm, timeout=self._options.timeout, once=self._once)
            task = self._servers[host] = asyncio.ensure_future(found)
        return await asyncio.shield(task)


def _question(trunk: Trunk) -> str:
    asked = next((m for m in reversed(trunk.messages) if m["role"] == "user"), {})
    content = asked.get("content")
    return content if isinstance(content, str) else ""
