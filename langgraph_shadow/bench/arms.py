"""The arms of `cost`: five ways to keep a person informed, each in a few lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI

from langgraph_shadow.bench.stopwatch import ModelCall, Stopwatch
from langgraph_shadow.bench.target import Session
from langgraph_shadow.branches.branch import Branch, user_update
from langgraph_shadow.branches.verdict import read_verdict
from langgraph_shadow.shadow import Shadow

DRAIN_S = 120.0

NARRATOR = (
    "You watch a research agent at work and keep its user informed. You are given what it has done "
    "so far."
)


@tool
def share_insight(sentence: str) -> str:
    """Tell the user in one sentence what you have just found, while you go on working."""
    return "The user has read it."


@dataclass(frozen=True, slots=True)
class Extra:
    """What an arm spent beside the orchestrator, and what came of it.

    Attributes:
        prompt: Prompt tokens.
        computed: Those of them that were not cached.
        generated: Tokens generated.
        instruction: Prompt tokens that are the arm's own: they were in no orchestrator prompt.
        updates: Sentences for the person.
        lags_ms: Milliseconds from the tool batch to each verdict.
        mispredicted: Branches whose cached tokens were not the predicted ones.
    """

    prompt: int = 0
    computed: int = 0
    generated: int = 0
    instruction: int = 0
    updates: int = 0
    lags_ms: list[float] = field(default_factory=list)
    mispredicted: int = 0


class Arm:
    """No shadow: the orchestrator alone. The other arms add to this one.

    Attributes:
        name: What the table calls it.
        tools: Tools that the orchestrator gets beside its own.
    """

    name = "no shadow"
    tools: Sequence[BaseTool] = ()

    def __init__(self, session: Session, salt: str) -> None:
        """Work beside one conversation, all of whose requests carry this cache salt."""
        self.branch: Branch = user_update()
        body = {"cache_salt": salt, "include_stop_str_in_output": True}
        self.llm: ChatOpenAI = session.llm(max_tokens=self.branch.max_tokens, extra_body=body)

    def watch(self, llm: ChatOpenAI) -> ChatOpenAI:
        """The orchestrator's model, as this arm wants to see it called."""
        return llm

    def batch_done(self, messages: Sequence[BaseMessage]) -> None:
        """A tool batch is complete; `messages` is the orchestrator's next prompt."""

    async def settle(self) -> Extra:
        """Wait for what is still running, after the conversation has ended."""
        return Extra()


class Aligned(Arm):
    """This library: the orchestrator's own prompt, the instruction at its very end."""

    name = "aligned shadow"

    def watch(self, llm: ChatOpenAI) -> ChatOpenAI:
        """Watch the model; the shadow sees each batch in the call that follows it."""
        self.shadow = Shadow(llm, branches=[self.branch], late="deliver", timeout=DRAIN_S)
        return self.shadow.watch(llm)

    async def settle(self) -> Extra:
        """Drain the shadow and read its ledger."""
        await self.shadow.drain(timeout=DRAIN_S)
        rows = [row for row in self.shadow.ledger.rows if row.prompt_tokens is not None]
        await self.shadow.aclose()
        return Extra(
            prompt=sum(r.prompt_tokens or 0 for r in rows),
            computed=sum((r.prompt_tokens or 0) - (r.cached or 0) for r in rows),
            generated=sum(r.generated or 0 for r in rows),
            instruction=sum((r.prompt_tokens or 0) - (r.kept or 0) for r in rows),
            updates=sum(r.verdict == "update" for r in rows),
            lags_ms=[r.lag_ms for r in rows if r.lag_ms is not None],
            mispredicted=sum(r.as_predicted is False for r in rows),
        )


class SideCall(Arm):
    """A call of the same model beside the agent, as it is written without this library."""

    def __init__(self, session: Session, salt: str) -> None:
        """Keep the calls in flight, and what they use."""
        super().__init__(session, salt)
        self._watch = Stopwatch()
        self._running: list[asyncio.Task[tuple[bool, float]]] = []

    def ask(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """What the side call is asked."""
        raise NotImplementedError

    def batch_done(self, messages: Sequence[BaseMessage]) -> None:
        """Ask at once, and let the agent go on."""
        self._running.append(asyncio.create_task(self._tell(self.ask(messages))))

    async def _tell(self, messages: list[BaseMessage]) -> tuple[bool, float]:
        start = time.perf_counter()
        stops = [". ", "! ", "? ", "\n\n"]
        reply = await self.llm.ainvoke(messages, {"callbacks": [self._watch]}, stop=stops)
        finish = reply.response_metadata.get("finish_reason")
        verdict = read_verdict(reply.text, branch=self.branch, finish_reason=finish)
        return verdict.kind == "update", (time.perf_counter() - start) * 1e3

    async def settle(self) -> Extra:
        """Wait for the calls and add up what they used."""
        told = await asyncio.gather(*self._running)
        return _extra(self._watch.calls, [update for update, _ in told], [ms for _, ms in told])


class ToolLess(SideCall):
    """The same instruction after the same messages, but without the orchestrator's tools."""

    name = "tool-less shadow"

    def ask(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The history and the instruction; the tools, which stand before it, are left out."""
        return [*messages, HumanMessage(self.branch.instruction)]


class Narrator(SideCall):
    """A second persona: its own system prompt, and the conversation as a transcript."""

    name = "narrator"

    def ask(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The transcript, in a prompt that has nothing in common with the orchestrator's."""
        lines = [f"{m.type}: {m.text or _calls(m)}" for m in messages if m.type != "system"]
        transcript = "\n".join(lines)
        return [
            SystemMessage(NARRATOR),
            HumanMessage(f"{transcript}\n\n{self.branch.instruction}"),
        ]


class InsightTool(Arm):
    """`share_insight` as a tool: the agent itself talks, in calls of its own loop."""

    name = "share_insight"
    tools = (share_insight,)

    def __init__(self, session: Session, salt: str) -> None:
        """Keep the time of the newest batch, and how long each sentence took."""
        super().__init__(session, salt)
        self._batch_at = 0.0
        self._lags_ms: list[float] = []

    def batch_done(self, messages: Sequence[BaseMessage]) -> None:
        """From here on the person waits for a sentence."""
        self._batch_at = time.perf_counter()

    def told(self) -> None:
        """The agent has written a sentence for the person."""
        self._lags_ms.append((time.perf_counter() - self._batch_at) * 1e3)

    async def settle(self) -> Extra:
        """Nothing ran beside the orchestrator: its calls hold the whole price."""
        return Extra(updates=len(self._lags_ms), lags_ms=self._lags_ms)


ARMS: tuple[type[Arm], ...] = (Arm, Aligned, ToolLess, Narrator, InsightTool)


def _extra(calls: list[ModelCall], updates: list[bool], lags_ms: list[float]) -> Extra:
    return Extra(
        prompt=sum(c.prompt for c in calls),
        computed=sum(c.prompt - c.cached for c in calls),
        generated=sum(c.generated for c in calls),
        updates=sum(updates),
        lags_ms=lags_ms,
    )


def _calls(message: BaseMessage) -> str:
    calls: list[Any] = message.tool_calls if isinstance(message, AIMessage) else []
    return ", ".join(f"{call['name']}({call['args']})" for call in calls)
