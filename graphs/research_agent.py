"""A hand-built research agent and its shadow: what makes the difference is marked (1) to (4)."""

from typing import Any

from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.agent import SYSTEM
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()

# (1) Say what to ask beside the agent, on the agent's own model.
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

# (2) Watch the model: the node alone does not know the prompt, which holds more than the state.
model = shadow.watch(llm).bind_tools(TOOLS)


def prompt(state: MessagesState) -> list[AnyMessage]:
    """What the model is sent: only ever appended to."""
    return [SystemMessage(SYSTEM), *state["messages"]]


def agent(state: MessagesState) -> dict[str, Any]:
    """Call the model, in `graph.invoke`."""
    return {"messages": [model.invoke(prompt(state))]}


async def async_agent(state: MessagesState) -> dict[str, Any]:
    """Call the model, in `graph.ainvoke`."""
    return {"messages": [await model.ainvoke(prompt(state))]}


builder = StateGraph(MessagesState)
builder.add_node("agent", RunnableLambda(agent, async_agent))
# (3) Wrap the tool node: each complete tool batch starts the branches.
builder.add_node("tools", shadow.tool_node(ToolNode(TOOLS)))
builder.add_edge(START, "agent")
builder.add_conditional_edges("agent", tools_condition)
builder.add_edge("tools", "agent")

# (4) Updates arrive on `stream_mode="custom"`; `attach` also tells the shadow when a run ends.
graph = shadow.attach(builder.compile())
