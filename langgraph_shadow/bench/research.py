"""The demo's research agent as the benchmarks run it: beside any arm of `cost`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langgraph_shadow.bench.arms import Arm, InsightTool, share_insight
from langgraph_shadow.bench.stopwatch import Stopwatch
from langgraph_shadow.demo import constrained
from langgraph_shadow.demo.agent import SYSTEM
from langgraph_shadow.demo.tools import TOOLS

QUESTIONS = (
    "How do I choose random elements from a list?",
    "How can I run a command and read what it prints?",
    "How do I write rows to a CSV file?",
)
SHARE = " After each tool result, call share_insight when the user would want to know of it now."
SENTENCE = r"[A-Z][a-z]+( [A-Za-z_.()]{1,14}){4,18}\."


async def research(
    question: str,
    thread: str,
    llm: ChatOpenAI,
    arm: Arm,
    watch: Stopwatch,
    *,
    constrain: bool,
) -> None:
    """Ask the research agent one question.

    A model too small for tool calls is constrained as in the demo; with `share_insight` it then
    talks after every batch, as a large model would that follows its instructions.
    """
    talks = isinstance(arm, InsightTool)
    system = SystemMessage(SYSTEM + SHARE if talks else SYSTEM)
    tools = [*TOOLS, *arm.tools]
    node = ToolNode(tools)

    async def agent(state: MessagesState) -> dict[str, Any]:
        messages = state["messages"]
        settings: dict[str, Any] = {}
        if constrain:
            settings = _constrained(llm, messages, talk=talks and _is_news(messages))
        elif constrained.batches(_work(messages)) >= constrained.MAX_BATCHES:
            settings = {"tool_choice": "none"}
        reply = await llm.bind_tools(tools, **settings).ainvoke([system, *messages])
        if constrain:
            reply = constrained.read_reply(reply, messages)
        if isinstance(arm, InsightTool) and _shares(reply):
            arm.told()
        return {"messages": [reply]}

    async def run_tools(state: MessagesState) -> dict[str, Any]:
        found: dict[str, Any] = await node.ainvoke(state)
        messages = [system, *state["messages"], *found["messages"]]
        if _is_news(messages):
            arm.batch_done(messages)
        return found

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", run_tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    graph = builder.compile()
    config: Any = {"configurable": {"thread_id": thread}, "callbacks": [watch]}
    inputs: Any = {"messages": [("user", question)]}
    await graph.ainvoke(inputs, config)


def _constrained(llm: ChatOpenAI, messages: Sequence[BaseMessage], *, talk: bool) -> dict[str, Any]:
    """Request fields that leave a small model only the replies that make sense now."""
    constraint = constrained.constraint(_work(messages))
    if talk:
        pattern = constrained.call_pattern(share_insight.name, "sentence", SENTENCE)
        constraint = {"structured_outputs": {"regex": pattern}}
    # a call's own `extra_body` replaces the model's, and with it the cache salt
    return {"tool_choice": "none", "extra_body": {**(llm.extra_body or {}), **constraint}}


def _work(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The history without what was said to the person."""
    return [m for m in messages if not _shares(m) and m.name != share_insight.name]


def _is_news(messages: Sequence[BaseMessage]) -> bool:
    """Whether the newest message is a result that the person has not heard of."""
    return isinstance(messages[-1], ToolMessage) and messages[-1].name != share_insight.name


def _shares(message: BaseMessage) -> bool:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return any(call["name"] == share_insight.name for call in calls)
