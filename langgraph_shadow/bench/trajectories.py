"""Recorded conversations, and their replay turn by turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI

from langgraph_shadow.bench.arms import Arm, InsightTool, share_insight
from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey

if TYPE_CHECKING:
    from langgraph_shadow.bench.stopwatch import Stopwatch
    from langgraph_shadow.bench.target import Session

ANSWER_TOKENS = 16
_ROOM = 256
"""Tokens that must be left for an answer and an instruction."""
_INSIGHT = 100
"""Tokens by which one use of `share_insight` lengthens a history."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One recorded conversation.

    Attributes:
        name: Its id, or its line in the file.
        messages: OpenAI messages, as recorded.
        tools: Tool schemas, the same in every call.
    """

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()

    @property
    def calls(self) -> list[int]:
        """Where the assistant's messages are: each was one model call."""
        return [i for i, m in enumerate(self.messages) if i and m["role"] == "assistant"]

    @property
    def batches(self) -> int:
        """Complete tool batches that a model call followed."""
        return sum(self.messages[i - 1]["role"] == "tool" for i in self.calls)

    def cut(self, calls: int) -> Trajectory:
        """The beginning of it, with so many model calls."""
        ends = self.calls
        end = ends[calls - 1] + 1 if 0 < calls <= len(ends) else len(self.messages)
        return replace(self, messages=self.messages[:end])


def read_trajectories(path: Path, tools: Path | None = None) -> list[Trajectory]:
    """Read conversations, one JSON object with `messages` per line.

    A line's own `tools` win over those of the file `tools`, a JSON list.

    Raises:
        TraceFormatError: With the line, and what should have been there.
    """
    shared = _tools(tools) if tools is not None else ()
    found = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            messages = tuple(record["messages"])
            convert_to_messages(list(messages))
        except (ValueError, KeyError, TypeError, NotImplementedError) as error:
            raise TraceFormatError(
                str(path),
                number,
                found=f"no conversation ({error})",
                expected="a JSON object with `messages`, a list of OpenAI messages",
            ) from error
        name = str(record.get("id") or f"line {number}")
        found.append(Trajectory(name, messages, tuple(record.get("tools") or shared)))
    if not found:
        raise TraceFormatError(str(path), 0, found="nothing", expected="one conversation per line")
    return found


async def fitted(session: Session, trajectory: Trajectory) -> Trajectory:
    """The beginning of a trajectory that fits the served model with every arm's additions."""
    longest = session.target.max_tokens
    low, high = 0, len(trajectory.calls)
    if longest is None:
        return trajectory
    while low < high:
        middle = (low + high + 1) // 2
        part = trajectory.cut(middle)
        prompt = Trunk.build(
            key=TrunkKey(thread=part.name),
            model=session.target.model,
            messages=part.messages[:-1],
            tools=(*part.tools, convert_to_openai_tool(share_insight)),
        )
        if await session.count(prompt) + _ROOM + _INSIGHT * part.batches <= longest:
            low = middle
        else:
            high = middle - 1
    return trajectory.cut(low) if low else replace(trajectory, messages=())


async def replay(
    trajectory: Trajectory, thread: str, llm: ChatOpenAI, arm: Arm, watch: Stopwatch
) -> None:
    """Make every model call of a recording; what comes back is thrown away.

    The history is the recorded one, so that every arm sees the same prompts; only `share_insight`
    adds to it what the agent said.
    """
    config: Any = {"metadata": {"thread_id": thread}, "callbacks": [watch]}
    tools: list[Any] = [*trajectory.tools, *arm.tools]
    fixed = {**(llm.extra_body or {}), "ignore_eos": True}
    model = llm.bind_tools(tools, tool_choice="none", extra_body=fixed) if tools else llm
    history: list[BaseMessage] = []
    for message in convert_to_messages([dict(m) for m in trajectory.messages]):
        if isinstance(message, AIMessage) and _asked(history):
            if isinstance(history[-1], ToolMessage):
                arm.batch_done(tuple(history))
                if isinstance(arm, InsightTool):
                    history += await _share(model, history, config, arm)
            await model.bind(max_tokens=ANSWER_TOKENS).ainvoke(history, config)
        history.append(message)


async def _share(
    model: Any, history: Sequence[BaseMessage], config: Any, arm: InsightTool
) -> list[BaseMessage]:
    """One more call of the orchestrator, whose text becomes an argument and stays in the history.

    The model decides nothing here: the price of a sentence per batch is what is compared.
    """
    reply = await model.bind(max_tokens=arm.branch.max_tokens).ainvoke(list(history), config)
    arm.told()
    name, said, id_ = share_insight.name, {"sentence": reply.text}, f"i{len(history)}"
    called = AIMessage("", tool_calls=[{"name": name, "args": said, "id": id_}])
    return [called, ToolMessage(share_insight.invoke(said), tool_call_id=id_, name=name)]


def _asked(history: Sequence[BaseMessage]) -> bool:
    """Whether the assistant's next message answered somebody: some recordings begin with one."""
    return any(isinstance(message, HumanMessage | ToolMessage) for message in history)


def _tools(path: Path) -> tuple[Message, ...]:
    expected = "a JSON list of OpenAI tool schemas"
    try:
        tools = json.loads(_text(path))
    except ValueError as error:
        raise TraceFormatError(str(path), 0, found=str(error), expected=expected) from error
    if not isinstance(tools, list):
        raise TraceFormatError(str(path), 0, found=type(tools).__name__, expected=expected)
    return tuple(tools)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"the file cannot be read ({error})"
        raise TraceFormatError(str(path), 0, found=found, expected="UTF-8 text") from error
