"""The research agent: its model, its model call, and the graph around it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from langchain_core.messages import SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langgraph_shadow.demo import constrained
from langgraph_shadow.demo.tools import TOOLS
from langgraph_shadow.server.models import EMBEDDED_MODELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

    from langgraph_shadow import Shadow

SYSTEM = (
    "You answer questions about Python's standard library. Search the documentation, read the "
    "entries that fit, then answer in two or three sentences, from what you have read."
)


class AgentNode(Protocol):
    """A node that calls the model."""

    async def __call__(self, state: MessagesState) -> dict[str, Any]:
        """Answer the state's messages with one more."""
        ...


def chat_model(
    base_url: str | None = None, model: str | None = None, *, cache_salt: str | None = None
) -> ChatOpenAI:
    """The orchestrator's model; what is not given comes from the environment.

    Args:
        base_url: The OpenAI-compatible address, ending in `/v1`; else `LANGGRAPH_SHADOW_BASE_URL`.
        model: The served model's name; else `LANGGRAPH_SHADOW_MODEL`.
        cache_salt: Keeps the prefix cache of this model object apart from everybody else's.
    """
    return ChatOpenAI(
        base_url=base_url
        or os.environ.get("LANGGRAPH_SHADOW_BASE_URL", "http://127.0.0.1:8000/v1"),
        model=model or os.environ.get("LANGGRAPH_SHADOW_MODEL", EMBEDDED_MODELS[0]),
        api_key=os.environ.get("LANGGRAPH_SHADOW_API_KEY", "none"),
        temperature=0,
        max_tokens=256,
        max_retries=1,
        stream_usage=True,  # without it a stream tells neither prompt nor cached tokens
        use_responses_api=False,
        extra_body={"cache_salt": cache_salt} if cache_salt else None,
    )


def needs_constraint(llm: ChatOpenAI) -> bool:
    """Whether this is one of the embedded models, which are too small to write tool calls."""
    return llm.model_name in EMBEDDED_MODELS


def agent_node(
    llm: ChatOpenAI,
    *,
    constrain: bool | None = None,
    on_reply: Callable[[AIMessage], None] | None = None,
) -> AgentNode:
    """The node that calls the model: always the same tools, history only appended to.

    Args:
        llm: The orchestrator's model.
        constrain: Choose tool calls by constrained decoding; by default for the embedded models.
        on_reply: Told every reply as the server sent it.
    """
    if constrain is None:
        constrain = needs_constraint(llm)

    async def agent(state: MessagesState) -> dict[str, Any]:
        messages = state["messages"]
        # `tool_choice` decides who reads the reply; the prompt is the same (facts/vllm.md).
        settings: dict[str, Any] = {}
        if constrain:
            body = {**(llm.extra_body or {}), **constrained.constraint(messages)}
            settings = {"tool_choice": "none", "extra_body": body}
        elif constrained.batches(messages) >= constrained.MAX_BATCHES:
            settings = {"tool_choice": "none"}
        model = llm.bind_tools(TOOLS, **settings)
        reply = await model.ainvoke([SystemMessage(SYSTEM), *messages])
        if on_reply:
            on_reply(reply)
        return {"messages": [constrained.read_reply(reply, messages) if constrain else reply]}

    return agent


def research_graph(
    agent: AgentNode,
    shadow: Shadow,
    *,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph that `langgraph-shadow demo` runs; `graphs/research_agent.py` spells it out."""
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", shadow.tool_node(ToolNode(TOOLS)))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return shadow.attach(builder.compile(checkpointer=checkpointer))
