"""A hand-built research agent with a shadow, for `langgraph dev`.

Needs a vLLM server at `LANGGRAPH_SHADOW_BASE_URL` that serves `LANGGRAPH_SHADOW_MODEL`;
`langgraph-shadow serve` starts one. What makes it a shadowed graph is marked with (1) to (3).
"""

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.agent import agent_node, chat_model
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()

# (1) Say what to ask beside the agent, on the agent's own model.
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

builder = StateGraph(MessagesState)
builder.add_node("agent", agent_node(llm))
# (2) Wrap the tool node: each complete tool batch starts the branches.
builder.add_node("tools", shadow.tool_node(ToolNode(TOOLS)))
builder.add_edge(START, "agent")
builder.add_conditional_edges("agent", tools_condition)
builder.add_edge("tools", "agent")

# (3) Let the shadow see what the model is sent. Updates arrive on `stream_mode="custom"`.
graph = shadow.attach(builder.compile())
