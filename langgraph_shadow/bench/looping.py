"""An agent that calls tools so many times and then ends, whatever its model writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, SystemMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool, StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langgraph_shadow.bench.texts import SYSTEM, prose
from langgraph_shadow.shadow import Shadow

RESULT_WORDS = 120


class Looping(ChatOpenAI):
    """A model whose first answers carry tool calls of ours behind the text that it writes.

    Small models cannot make tool calls; their text costs what a real answer costs, because its
    length is fixed.

    Attributes:
        batches: Answers that carry tool calls.
        parallel: Tool calls in each of them.
    """

    batches: int = 4
    parallel: int = 1

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for chunk in super()._astream(messages, *args, **kwargs):
            yield chunk
        batch = sum(isinstance(message, AIMessage) for message in messages)
        if batch < self.batches:
            yield ChatGenerationChunk(
                message=AIMessageChunk(
                    content="",
                    tool_call_chunks=[
                        tool_call_chunk(
                            name="search",
                            args=f'{{"topic": "batch {batch}", "place": {place}}}',
                            id=f"call{batch:03d}{place:02d}",
                            index=place,
                        )
                        for place in range(self.parallel)
                    ],
                )
            )


def search_tool(thread: str, seconds: tuple[float, ...]) -> BaseTool:
    """A tool that takes its time: the call at place i of a batch takes `seconds[i]`.

    Its results are words of their own for each thread and batch, so that none is cached before.
    """

    async def search(topic: str, place: int = 0) -> str:
        """Search the archive for a topic and return the passages that fit best."""
        await asyncio.sleep(seconds[place % len(seconds)])
        return f"{topic}: {prose(f'{thread} {topic} {place}', RESULT_WORDS)}"

    return StructuredTool.from_function(coroutine=search)


def looping_agent(
    llm: Looping, tool: BaseTool, shadow: Shadow | None = None
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A graph of agent and tools in a loop, with or without a shadow."""

    async def agent(state: MessagesState) -> dict[str, Any]:
        bound = llm.bind_tools([tool], tool_choice="none")
        return {"messages": [await bound.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    node = ToolNode([tool])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", shadow.tool_node(node) if shadow else node)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    graph = builder.compile()
    return shadow.attach(graph) if shadow else graph
