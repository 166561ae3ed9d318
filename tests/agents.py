"""Small agents over the real model, whose tool calls are forced and whose ends are counted.

A random model cannot decide to call a tool, so constrained decoding makes it write one for the
first few calls; that leaves the prompt's tokens unchanged (facts/vllm.md, "Models without a
model hub").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_shadow.delivery.ledger import LedgerRow
from langgraph_shadow.runner.forecast import AHEAD

SYSTEM = "You are a careful research agent. Read what the tools bring and cite it. " * 12
GLACIERS = (
    "Alpine glaciers lost about a third of their volume between 2000 and 2023, and the loss is "
    "fastest where dust darkens the ice. Measurements come from stakes in the ice and satellites. "
)


@tool
def search(topic: str = "glaciers") -> str:
    """Search the archive for a topic."""
    return f"{topic}: {GLACIERS * 4}"


TOOLS: list[BaseTool] = [search]


def hit(row: LedgerRow) -> bool:
    """Whether a branch found exactly what was predicted.

    Where the orchestrator does not stream, a machine that stalls for longer than `head_start` lets
    the branch come first, and its row says so.
    """
    return row.predicted == row.cached or row.miss == AHEAD


def tool_turns(messages: Sequence[Any]) -> int:
    """How many tool results the history holds since the last human message."""
    count = 0
    for message in reversed(messages):
        if message.type == "human":
            break
        count += isinstance(message, ToolMessage)
    return count


def forced(messages: Sequence[Any], batches: int, parallel: int) -> dict[str, Any]:
    """Request fields that make an agent loop exactly `batches` times, `parallel` calls each."""
    turn = tool_turns(messages) // parallel
    if turn >= batches:
        return {"tool_choice": "none"}
    calls = [
        json.dumps({"name": "search", "arguments": {"topic": f"ice {turn}.{i}"}})
        for i in range(parallel)
    ]
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    return {"extra_body": {"structured_outputs": {"choice": [text]}}, "max_tokens": 200}


def hand_built(
    llm: ChatOpenAI,
    *,
    batches: int = 2,
    parallel: int = 1,
    tools_node: Any = None,
    system: Callable[[], str] = lambda: SYSTEM,
) -> StateGraph[Any, Any, Any, Any]:
    """agent → tools → agent …, sync and async, not yet compiled."""

    def bound(messages: Sequence[Any]) -> Any:
        return llm.bind_tools(TOOLS, **forced(messages, batches, parallel))

    def prompt(state: MessagesState) -> list[Any]:
        return [SystemMessage(system()), *state["messages"]]

    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound(state["messages"]).invoke(prompt(state))]}

    async def aagent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound(state["messages"]).ainvoke(prompt(state))]}

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", RunnableLambda(agent, aagent))
    builder.add_node("tools", ToolNode(TOOLS) if tools_node is None else tools_node)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder


class ForcedTools(AgentMiddleware[Any, Any]):
    """Makes `create_agent` loop exactly `batches` times."""

    def __init__(self, batches: int, parallel: int = 1) -> None:
        super().__init__()
        self.batches = batches
        self.parallel = parallel

    def _forced(self, request: Any) -> Any:
        fields = forced(request.messages, self.batches, self.parallel)
        tool_choice = fields.pop("tool_choice", None)
        return request.override(tool_choice=tool_choice, model_settings=fields)

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(self._forced(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(self._forced(request))


def created(
    llm: ChatOpenAI,
    *,
    batches: int = 2,
    parallel: int = 1,
    middleware: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """The same agent by `create_agent`."""
    return create_agent(
        llm,
        TOOLS,
        system_prompt=SYSTEM,
        middleware=[ForcedTools(batches, parallel), *middleware],
        **options,
    )


def contents(messages: Sequence[Any]) -> list[tuple[str, Any, list[str]]]:
    """What a run's messages say, without the ids that differ from run to run."""
    return [
        (m.type, m.content, [c["name"] for c in getattr(m, "tool_calls", None) or ()])
        for m in messages
    ]
