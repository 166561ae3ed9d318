"""A graph with an agent inside: research first, then a reply in plain words.

Attached to the outer graph, the shadow sees the inner agent's batches too. To get its events from
the stream, ask for `subgraphs=True`.
"""

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.agent import SYSTEM
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")


def sign(state: MessagesState) -> dict[str, Any]:
    """Add a last message, without the model."""
    sources = sum(message.type == "tool" for message in state["messages"])
    return {"messages": [AIMessage(f"(from {sources} tool results)")]}


builder = StateGraph(MessagesState)
builder.add_node("research", create_agent(llm, TOOLS, system_prompt=SYSTEM))
builder.add_node("sign", sign)
builder.add_edge(START, "research")
builder.add_edge("research", "sign")

graph = shadow.attach(builder.compile())
