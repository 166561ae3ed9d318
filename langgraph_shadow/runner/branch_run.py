"""One branch, from its instruction to its verdict: align, predict, send, read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Prompt, RendererUnavailableError
from langgraph_shadow.alignment.session import Aligned
from langgraph_shadow.branches.branch import Branch
from langgraph_shadow.branches.verdict import SentenceWatch, Verdict, read_verdict
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.runner.budget import Budget, Refusal
from langgraph_shadow.runner.failures import failure_of
from langgraph_shadow.runner.forecast import AHEAD, Forecast
from langgraph_shadow.runner.kv_events import Residency
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Options
from langgraph_shadow.runner.priority import ask_later
from langgraph_shadow.runner.sending import send_aligned
from langgraph_shadow.runner.server import Server
from langgraph_shadow.runner.spending import added, computed
from langgraph_shadow.runner.streaming import Answer, never
from langgraph_shadow.runner.warming import warm
from langgraph_shadow.trunk.model import Trunk

log = logging.getLogger("langgraph_shadow.runner")

SENTENCE_STOPS = (". ", "! ", "? ", "\n\n")
"""Strings at which the server stops by itself: closing the stream instead would lose its usage.
vLLM takes four at most (`VLLM_MAX_STOP_STRINGS`)."""


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """What came of one branch: its verdict and what it cost."""

    verdict: Verdict
    aligned: Aligned | None = None
    answer: Answer | None = None
    predicted: int | None = None
    miss: str = ""

    @property
    def kept(self) -> int | None:
        """Trunk tokens kept, when they were counted in tokens."""
        if self.aligned is None or self.aligned.branch.unit != "tokens":
            return None
        return self.aligned.kept


class BranchRun:
    """Runs branches against one trunk on one server."""

    def __init__(
        self,
        *,
        server: Server,
        ladder: Ladder,
        options: Options,
        budget: Budget,
        once: Once,
        trunk: Trunk,
        route: Route,
        sent: Callable[[], Sequence[Prompt]],
        certain: Callable[[], Prompt | None],
        keep: Callable[[Prompt], None],
        question: str,
        hints: Callable[[Branch], Mapping[str, Any]],
        residency: Residency | None,
    ) -> None:
        """Prepare to run branches.

        Args:
            server: Where they are sent.
            ladder: Chooses the carrier.
            options: Timeout and priority.
            budget: What the branches may cost.
            once: For warnings.
            trunk: What they run against, with the model that they ask.
            route: What they repeat of the orchestrator's request.
            sent: Names the newest prompts of this history that the server was sent, at the time
                when it is asked.
            certain: Names the newest prompt that was surely computed by then, where `sent` can only
                assume it.
            keep: Remembers a branch's prompt that was computed.
            question: The person's own question, whose links may be repeated.
            hints: Fields that tell a router's scheduler of a branch.
            residency: The blocks that the server holds, where it tells.
        """
        self.trunk = trunk
        self.budget = budget
        self._server = server
        self._block_size = server.block_size
        self._ladder = ladder
        self._options = options
        self._once = once
        self._route = route
        self._sent = sent
        self._certain = certain
        self._keep = keep
        self._question = question
        self._hints = hints
        self._residency = residency
        self._aligned: dict[str, Aligned] = {}
        self._forecast = Forecast(trunk, server, once)

    async def prepare(self, branches: Iterable[Branch]) -> None:
        """Align branches ahead, while there is time; a branch that fails here fails in `run`."""
        for branch in branches:
            try:
                async with asyncio.timeout(self._options.timeout):
                    await self._align(branch)
            except Exception as error:
                log.debug("branch %r was not aligned ahead: %r", branch.name, error)
                return

    async def warm(self) -> None:
        """Have the server compute the trunk's prompt, so that the branch finds it cached."""
        prompt = Prompt.of(self.trunk)
        sent = await warm(
            prompt,
            self._server,
            budget=self.budget,
            route=self._route,
            options=self._options,
            once=self._once,
        )
        if sent:
            self._keep(prompt)

    async def refusal(self) -> Refusal | None:
        """Why no branch may leave now, or None."""
        budget = self.budget
        return budget.closed() or await budget.pressure(self._server.engine.metrics)

    async def gone(self, branch: Branch) -> Refusal | None:
        """Why a branch may not leave because its prefix is no longer cached, or None."""
        if self._residency is None:
            return None
        try:
            async with asyncio.timeout(self._options.timeout):
                aligned = await self._align(branch)
        except Exception:
            return None  # `run` meets the same error and says it
        held = self._held(aligned)
        cost = len(aligned.branch) - held if held is not None else 0
        if cost <= self._options.max_new_tokens:
            return None
        return Refusal("kv_events", f"its prefix is gone: it would cost {cost} tokens")

    def _held(self, aligned: Aligned) -> int | None:
        """Tokens of a branch's prompt whose blocks the server holds; None when it does not tell."""
        items = aligned.branch.items
        if self._residency is None or isinstance(items, str):
            return None
        return self._residency.held(items, salt=self.trunk.fields.get("cache_salt"))

    async def run(
        self, branch: Branch, *, on_first_token: Callable[[], None] = lambda: None
    ) -> BranchOutcome:
        """Run one branch; every failure becomes a verdict with its reason.

        Args:
            branch: What to ask.
            on_first_token: Called once the branch's prompt has been computed.
        """
        breaker = self.budget.breaker
        probe = breaker.enter()
        healthy: bool | None = False
        try:
            with self.budget.running():
                async with asyncio.timeout(self._options.timeout):
                    outcome = await self._run(branch, on_first_token)
        except asyncio.CancelledError:
            healthy = None
            raise
        except Exception as error:
            failure = failure_of(error, timeout=self._options.timeout)
            healthy = failure.healthy
            if failure.away:
                self._server.restarted()
            if failure.bug:
                name = f"bug-{type(error).__name__}"
                self._once.warn(log, name, "a branch failed: %r", error)
            return BranchOutcome(Verdict(kind="failed", reason=failure.reason))
        else:
            healthy = True
            return outcome
        finally:
            breaker.record(probe=probe, healthy=healthy)

    async def _run(self, branch: Branch, on_first_token: Callable[[], None]) -> BranchOutcome:
        if self._server.block_size != self._block_size:  # another branch found it gone meanwhile
            await self._server.find_out(self._once)
        aligned = await self._align(branch)
        resident = self._forecast.resident()
        predicted = await self._forecast.cached(aligned, self._sent(), resident)
        certain = self._certain()

        def computed() -> None:
            self._forecast.computed(aligned.branch)
            if aligned.prompt is not None:
                self._keep(aligned.prompt)
            on_first_token()

        held = self._held(aligned)
        stops = () if branch.schema else SENTENCE_STOPS
        answer = await self._send(branch, aligned, stops, computed)
        miss = self._forecast.miss(aligned, answer, predicted=predicted, held=held)
        if certain is not None and predicted is not None and (answer.cached or 0) < predicted:
            least = await self._forecast.cached(aligned, [certain], resident)
            miss = AHEAD if (answer.cached or 0) >= (least or 0) else miss
        if miss not in ("", AHEAD):
            self._ladder.distrust(self.trunk)
        verdict = self._read(branch, aligned, answer)
        if answer.stop_reason in stops and not _ended(branch, aligned, answer.text):
            watch = SentenceWatch(branch, thinking_open=_thinking_open(aligned))
            again = await self._send(branch, aligned, (), lambda: None, until=watch.feed)
            verdict = self._read(branch, aligned, again)
        return BranchOutcome(verdict, aligned, answer, predicted, miss)

    async def _align(self, branch: Branch) -> Aligned:
        if branch.name not in self._aligned:
            self._aligned[branch.name] = await self._climb(branch)
        return self._aligned[branch.name]

    async def _climb(self, branch: Branch) -> Aligned:
        server = self._server
        try:
            return await self._ladder.align(
                self.trunk, branch.instruction, server.renderer, block_size=server.block_size or 1
            )
        except RendererUnavailableError as error:
            server.fall_back_to_wire(error.reason, self._once)
            return await self._ladder.align(
                self.trunk, branch.instruction, server.renderer, block_size=1
            )

    async def _send(
        self,
        branch: Branch,
        aligned: Aligned,
        stop: tuple[str, ...],
        on_first_token: Callable[[], None],
        until: Callable[[str], bool] = never,
    ) -> Answer:
        async def ask(fields: dict[str, Any]) -> Answer:
            return await send_aligned(
                self._server.engine,
                self.trunk,
                aligned,
                body=fields,
                headers=self._route.headers,
                until=until,
                on_first_token=on_first_token,
            )

        body = {
            **self._route.body,
            **self._hints(branch),
            **branch.request_fields(),
            "stop": list(stop),
            "include_stop_str_in_output": True,
        }
        try:
            answer = await ask_later(
                ask, body, server=self._server, options=self._options, once=self._once
            )
        except asyncio.CancelledError:
            self.budget.spend(added(aligned))
            raise
        self.budget.spend(computed(aligned, answer))
        return answer

    def _read(self, branch: Branch, aligned: Aligned, answer: Answer) -> Verdict:
        system = next((m["content"] for m in self.trunk.messages if m["role"] == "system"), "")
        return read_verdict(
            answer.text,
            branch=branch,
            finish_reason=answer.finish_reason,
            tool_calls=answer.tool_calls,
            thinking_open=_thinking_open(aligned),
            trunk_texts=(system,) if isinstance(system, str) else (),
            question=self._question,
        )


def _thinking_open(aligned: Aligned) -> bool:
    return aligned.opening is not None and aligned.opening.thinking


def _ended(branch: Branch, aligned: Aligned, text: str) -> bool:
    """Whether a sentence stop ended a sentence, and not an abbreviation such as `Dr. `.

    The server cuts the text off after the stop string; any capital letter may have followed.
    """
    return SentenceWatch(branch, thinking_open=_thinking_open(aligned)).feed(text + "X")
