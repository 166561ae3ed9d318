"""The same three roles as they are usually written: each role is a system prompt, in front.

To compare with `specialists.py`. Every prompt begins differently, so the server computes and keeps
the growing conversation once for each role.
"""

from typing import Any

from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

ROLES = {
    "researcher": "You are the researcher. Look up what is needed, then say what you found.",
    "critic": "You are the critic. Name what is wrong or missing in what the researcher says.",
    "writer": "You are the writer. Answer the question in three sentences, and heed the critic.",
}


def agent(name: str) -> RunnableLambda[MessagesState, dict[str, Any]]:
    """A node whose role stands in front of everything else."""
    system = SystemMessage(f"You are part of a team. {ROLES[name]}")
    model = shadow.watch(llm)
    bound = model.bind_tools(TOOLS) if name == "researcher" else model

    def call(state: MessagesState) -> dict[str, Any]:
        reply = bound.invoke([system, *state["messages"]])
        return {"messages": [reply.model_copy(update={"name": name})]}

    async def acall(state: MessagesState) -> dict[str, Any]:
        reply = await bound.ainvoke([system, *state["messages"]])
        return {"messages": [reply.model_copy(update={"name": name})]}

    return RunnableLambda(call, acall)


builder = StateGraph(MessagesState)
for name in ROLES:
    builder.add_node(name, agent(name))
builder.add_node("tools", shadow.tool_node(ToolNode(TOOLS)))
builder.add_edge(START, "researcher")
builder.add_conditional_edges("researcher", tools_condition, {"tools": "tools", END: "critic"})
builder.add_edge("tools", "researcher")
builder.add_edge("critic", "writer")

graph = shadow.attach(builder.compile())
