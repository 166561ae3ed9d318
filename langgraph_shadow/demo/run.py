"""One run of the demo: ask the agent, show it and its shadow, take stock."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.agent import agent_node, research_graph
from langgraph_shadow.demo.report import DemoReport, OrchestratorUse, branch_reports
from langgraph_shadow.demo.tools import TOOLS
from langgraph_shadow.testing.search import count_ghosts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from langchain_core.runnables import RunnableConfig
    from langchain_openai import ChatOpenAI
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import StreamMode

    from langgraph_shadow.demo.screen import Screen
    from langgraph_shadow.guard.report import GuardMode

DRAIN_S = 20.0
"""Seconds that the last branches get after the answer."""


async def run_demo(
    llm: ChatOpenAI,
    question: str,
    screen: Screen,
    *,
    language: str = "English",
    guard: GuardMode = "warn",
    constrain: bool | None = None,
    block_size: int | None = None,
) -> DemoReport:
    """Ask the research agent one question, with shadow branches beside it.

    Args:
        llm: The orchestrator's model.
        question: About Python's standard library.
        screen: Where the run is shown.
        language: The language of the updates, by its English name.
        guard: What the guard does about a break.
        constrain: Choose tool calls by constrained decoding; by default for the embedded models.
        block_size: Tokens per KV block, for the report.
    """
    branch = user_update(language=language)
    shadow = Shadow(llm, branches=[branch], guard=guard, launch="follow")
    replies: list[AIMessage] = []
    saver = InMemorySaver()
    agent = agent_node(llm, constrain=constrain, on_reply=replies.append)
    graph = research_graph(agent, shadow, checkpointer=saver)
    config: RunnableConfig = {"configurable": {"thread_id": "demo"}}

    screen.question(question)
    streamed = await _show(graph, question, config, screen)
    await shadow.drain(timeout=DRAIN_S)

    state = await graph.aget_state(config)
    history = [snapshot async for snapshot in graph.aget_state_history(config)]
    rows, totals = shadow.ledger.rows, shadow.ledger.totals
    for row in rows:
        if row.late and row.text:
            screen.update(row.text, row.lag_ms)
    answer = state.values["messages"][-1].text
    screen.answer(answer)
    if rows:
        screen.ledger(rows)
    ghosts = count_ghosts(
        [branch.instruction, *(row.text for row in rows)],
        [state, history, saver.storage, saver.writes, saver.blobs, streamed],
        own=[*(reply.text for reply in replies), *_tool_texts(state.values["messages"])],
    )
    return DemoReport(
        mode=rows[0].mode if rows else "shared",
        model=llm.model_name,
        block_size=block_size,
        answer=answer,
        orchestrator=OrchestratorUse.of(replies),
        branches=branch_reports(rows),
        delivered=totals.delivered,
        dropped=totals.shed,
        late=totals.late,
        ghosts=ghosts,
    )


async def _show(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    question: str,
    config: RunnableConfig,
    screen: Screen,
) -> list[str]:
    """Run the graph and show what it streams; returns every streamed message's text."""
    streamed: dict[str, list[str]] = defaultdict(list)
    inputs = {"messages": [HumanMessage(question)]}
    modes: list[StreamMode] = ["updates", "messages", "custom"]
    stream: AsyncIterator[Any] = graph.astream(inputs, config, stream_mode=modes)
    async for mode, chunk in stream:
        if mode == "messages":
            streamed[str(chunk[0].id)].append(chunk[0].text)
        elif mode == "updates":
            for update in chunk.values():
                for message in update["messages"]:
                    screen.message(message)
        elif chunk.get("type") == "shadow.update":
            screen.update(chunk["text"], chunk.get("lag_ms"))
    return ["".join(parts) for parts in streamed.values()]


def _tool_texts(messages: list[BaseMessage]) -> list[str]:
    """What the tools return for the calls in the history: asked again, not read from the state."""
    tools = {tool.name: tool for tool in TOOLS}
    return [
        str(tools[call["name"]].invoke(call["args"]))
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
        if call["name"] in tools
    ]
