"""An agent whose model is a script: its trunks are real, its answers cost nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import (
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import Field

from langgraph_shadow import Shadow

SYSTEM = "You are a research agent. Look things up before you answer."

Look = Callable[[str], Awaitable[str]]
"""What the tool does: gets the thread, returns the result."""


class ScriptedChat(ChatOpenAI):
    """Calls its tool `batches` times after each question, then answers; nothing is sent.

    Attributes:
        batches: Tool batches per question.
    """

    batches: int = Field(default=5)

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        made = 0
        for message in reversed(messages):
            if isinstance(message, HumanMessage):
                break
            made += isinstance(message, ToolMessage)
        call = {"name": "look", "args": f'{{"topic": "ice {made}"}}', "id": uuid4().hex, "index": 0}
        yield ChatGenerationChunk(
            message=AIMessageChunk(content="", tool_call_chunks=[call])
            if made < self.batches
            else AIMessageChunk(content="The ice retreats.")
        )


def scripted(base_url: str, model: str, *, batches: int = 5) -> ScriptedChat:
    """The model; its address is where branches go."""
    return ScriptedChat(
        base_url=base_url,
        model=model,
        api_key="x",
        temperature=0,
        use_responses_api=False,
        batches=batches,
    )


def agent(llm: ScriptedChat, look: Look, shadow: Shadow | None) -> Any:
    """An agent without a checkpointer, so that nothing but the shadow holds on to a thread."""

    @tool("look")
    async def look_up(topic: str, config: RunnableConfig) -> str:
        """Look a topic up."""
        return f"{topic}: {await look(config['configurable']['thread_id'])}"

    bound: Runnable[LanguageModelInput, BaseMessage] = llm.bind_tools([look_up])

    async def answer(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [await bound.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    def route(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    node = ToolNode([look_up])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", answer)
    builder.add_node("tools", node if shadow is None else shadow.tool_node(node))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    graph = builder.compile()
    return graph if shadow is None else shadow.attach(graph)


async def ask(graph: Any, thread: str, question: str) -> None:
    """Ask one question, streaming as a user interface would."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 1000}
    stream = graph.astream(
        {"messages": [HumanMessage(question)]}, config, stream_mode=["messages", "custom"]
    )
    async for _ in stream:
        pass
