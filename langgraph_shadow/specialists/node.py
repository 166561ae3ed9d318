"""`specialist`: a graph node that runs in a role, behind the trunk that all roles share."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph._internal._runnable import RunnableCallable
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from langgraph_shadow.specialists.calls import Calls
from langgraph_shadow.specialists.errors import SpecialistError
from langgraph_shadow.specialists.hop import Hop
from langgraph_shadow.specialists.ledger import HopLedger
from langgraph_shadow.specialists.model import RoleModel
from langgraph_shadow.specialists.team import Head, Team, team_of

if TYPE_CHECKING:
    from langgraph_shadow.shadow import Shadow

Tools: TypeAlias = "Sequence[BaseTool | Callable[..., Any]] | ToolNode"
Writes: TypeAlias = "str | Command[Any] | Callable[[list[AnyMessage], Any], Any]"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def declare(
    shadow: Shadow, *, system: str = "", tools: Sequence[BaseTool | Callable[..., Any]] = ()
) -> Head:
    """Say once what stands in front of every prompt of a shadow's specialists.

    Needed for a system prompt that is not in the state, and where an orchestrator of its own takes
    part: it must send the same, `[SystemMessage(head.system), *messages]` with
    `bind_tools(head.tools)`. Else the specialists' tools are declared in the order in which the
    specialists are made.

    Args:
        shadow: The shadow.
        system: The system prompt; it never enters the state.
        tools: Every tool that any of them may call, in the order in which all are sent.

    Returns:
        The head, for the orchestrator.

    Raises:
        ValueError: It is too late, or two tools have one name.
    """
    return team_of(shadow).declare(system, [_tool(tool) for tool in tools])


def ledger_of(shadow: Shadow) -> HopLedger:
    """The ledger of a shadow's specialists: predicted and cached tokens of each request."""
    return team_of(shadow).ledger


def specialist(
    shadow: Shadow,
    *,
    name: str,
    role: str,
    tools: Tools = (),
    writes: Writes = "messages",
    must_call: bool = False,
    max_calls: int = 8,
    max_tokens: int | None = None,
    messages_key: str = "messages",
) -> Runnable[Any, Any]:
    """Make a graph node that answers in a role, behind the trunk that all roles share.

    Its prompt is the trunk (declared system prompt and tools, then the state's messages) with the
    role at the very end, attached and proved as a branch's instruction is. The role is in no
    state; the answer is appended to it, so the next specialist's trunk contains it. Unlike a
    branch it is part of the graph: the graph waits for it, its errors are raised, it writes.

    Example:
        ```python
        builder.add_node("critic", specialist(shadow, name="critic", role="You are the critic. …"))
        ```

    Args:
        shadow: Its model is asked, and its guard, affinity and branches apply.
        name: Letters, digits, `_` and `-`; names the answer (`AIMessage.name`) and the ledger row.
        role: What it is to do, as a turn of the user's behind everything else. All of it is
            computed for each request, so keep it short.
        tools: The tools that it alone may call: tools, functions, or a `ToolNode`. Every
            specialist's tools are declared in the trunk; a call of another's tool cannot be
            decoded, and is refused before anything is executed.
        writes: Where the answer goes: the messages' key (tool calls, results and the answer are
            appended), another key (the answer's text alone), a `Command` (the messages are
            appended and it is followed), or a function of the new messages, the answer last, and
            the state, which returns what a node may return.
        must_call: Whether it calls a tool before it may answer.
        max_calls: Tool calls in one visit; after so many it has to answer.
        max_tokens: Longest reply in tokens; by default the model's own setting.
        messages_key: The state's key for messages.

    Raises:
        ValueError: A value is out of range, a tool comes too late, or its name is taken.
        TypeError: `writes` is none of these.
    """
    team = team_of(shadow)
    _check(name, role, must_call, bool(tools), max_calls)
    if not isinstance(writes, str | Command) and not callable(writes):
        msg = f"specialist {name!r}: writes is a key, a Command or a function, not {writes!r}"
        raise TypeError(msg)
    if isinstance(writes, Command) and not isinstance(writes.update, Mapping | None):
        msg = f"specialist {name!r}: the update of the Command in writes has to be a mapping"
        raise TypeError(msg)
    if isinstance(tools, ToolNode):
        node, own = tools, list(tools.tools_by_name.values())
    else:
        own = [_tool(tool) for tool in tools]
        node = ToolNode(own, messages_key=messages_key)
    team.join(name, own)
    made = _Specialist(
        team=team,
        name=name,
        role=role,
        node=shadow.tool_node(node),
        own=tuple(convert_to_openai_tool(tool) for tool in own),
        writes=writes,
        must_call=must_call,
        max_calls=max_calls,
        max_tokens=max_tokens,
        messages_key=messages_key,
    )
    # not a RunnableLambda: that would add a step of ours to the graph's trace
    return RunnableCallable(made.invoke, made.ainvoke, name=name, trace=False, recurse=False)


@dataclass(frozen=True, slots=True)
class _Step:
    """Something to be run and waited for, in the graph's own way."""

    runnable: Runnable[Any, Any]
    given: Any
    run_id: Any = None

    def config(self, config: RunnableConfig) -> RunnableConfig:
        return {**config, "run_id": self.run_id} if self.run_id else config


_Visit: TypeAlias = "Generator[_Step, Any, Any]"


@dataclass(frozen=True, slots=True)
class _Specialist:
    team: Team
    name: str
    role: str
    node: ToolNode
    own: tuple[Mapping[str, Any], ...]
    writes: Writes
    must_call: bool
    max_calls: int
    max_tokens: int | None
    messages_key: str

    def invoke(self, state: Any, config: RunnableConfig) -> Any:
        visit, result = self._visit(state), None
        while True:
            try:
                step = visit.send(result)
            except StopIteration as over:
                return over.value
            result = step.runnable.invoke(step.given, step.config(config))

    async def ainvoke(self, state: Any, config: RunnableConfig) -> Any:
        visit, result = self._visit(state), None
        while True:
            try:
                step = visit.send(result)
            except StopIteration as over:
                return over.value
            result = await step.runnable.ainvoke(step.given, step.config(config))

    def _visit(self, state: Any) -> _Visit:
        """One visit, step by step; who runs the steps decides between sync and async."""
        given = self._messages(state)
        made: list[Any] = []
        for turn in range(self.max_calls + 1):
            hop = Hop(
                specialist=self.name,
                role=self.role,
                own=self.own,
                calls=self._calls(turn),
                max_tokens=self.max_tokens,
                turn=turn,
            )
            model = RoleModel(
                team=self.team,
                hop=hop,
                streaming=True,
                callbacks=self.team.callbacks,
                metadata=self.team.metadata,
            )
            reply = yield _Step(model, [*given, *made], hop.run_id)
            made.append(reply.model_copy(update={"name": self.name}))
            if not reply.tool_calls:
                break
            seen = {**_values(state), self.messages_key: [*given, *made]}
            results, commands = _sorted((yield _Step(self.node, seen)), self.messages_key)
            made += results
            if commands:  # a tool hands over to another node
                return [{self.messages_key: made}, *commands]
        return self._written(made, state)

    def _calls(self, turn: int) -> Calls:
        if not self.own or turn >= self.max_calls:
            return "none"
        return "must" if self.must_call and turn == 0 else "may"

    def _messages(self, state: Any) -> list[BaseMessage]:
        messages = _values(state).get(self.messages_key)
        if not isinstance(messages, list | tuple):
            problem = f"the state has no list of messages under {self.messages_key!r}"
            raise SpecialistError(self.name, problem, remedy="Name the key with messages_key=….")
        head = self.team.head()
        if head.system and messages and isinstance(messages[0], SystemMessage):
            problem = "there are two system prompts, the declared one and the state's"
            raise SpecialistError(self.name, problem, remedy="Leave one of them out.")
        prompt = head.messages(messages)
        if not prompt:
            problem = "there is nothing in front of its role: no messages and no system prompt"
            raise SpecialistError(self.name, problem, remedy="Invoke the graph with a message.")
        return prompt

    def _written(self, made: list[Any], state: Any) -> Any:
        answer: AIMessage = made[-1]
        writes = self.writes
        if isinstance(writes, str):
            return {writes: made if writes == self.messages_key else answer.text}
        if isinstance(writes, Command):
            update = {self.messages_key: made, **(writes.update or {})}
            return Command(graph=writes.graph, goto=writes.goto, update=update)
        return writes(made, state)


def _sorted(output: Any, key: str) -> tuple[list[Any], list[Command[Any]]]:
    """What a tool node returned: messages, and the commands among it."""
    messages: list[Any] = []
    commands: list[Command[Any]] = []
    for item in output if isinstance(output, list) else [output]:
        if isinstance(item, Command):
            commands.append(item)
        else:
            messages += item[key] if isinstance(item, Mapping) else [item]
    return messages, commands


def _values(state: Any) -> dict[str, Any]:
    if isinstance(state, Mapping):
        return dict(state)
    if isinstance(state, list | tuple):
        return {"messages": state}
    return dict(vars(state))


def _tool(given: BaseTool | Callable[..., Any]) -> BaseTool:
    made: BaseTool = given if isinstance(given, BaseTool) else as_tool(given)
    return made


def _check(name: str, role: str, must_call: bool, tools: bool, max_calls: int) -> None:
    problem = None
    if not _NAME.fullmatch(name):
        problem = "its name has to be letters, digits, _ and -, beginning with a letter"
    elif not role.strip():
        problem = "its role is empty"
    elif must_call and not tools:
        problem = "it must call a tool and has none"
    elif max_calls < 1:
        problem = f"max_calls is {max_calls}: it must be at least 1"
    if problem is not None:
        msg = f"specialist {name!r}: {problem}"
        raise ValueError(msg)
