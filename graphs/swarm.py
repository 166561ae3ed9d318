"""Two peers that hand the conversation to each other (langgraph-swarm), and one shadow for both.

Each agent has its own system prompt and tools, hence its own prefix: after a handover the shadow
follows the agent that speaks.
"""

from langchain.agents import create_agent
from langgraph_swarm import create_handoff_tool, create_swarm

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.tools import read_doc, search_docs

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

finder = create_agent(
    llm,
    [search_docs, create_handoff_tool(agent_name="reader")],
    system_prompt="You search the documentation of Python's standard library; the reader reads.",
    name="finder",
)
reader = create_agent(
    llm,
    [read_doc, create_handoff_tool(agent_name="finder")],
    system_prompt="You read entries of Python's documentation; the finder searches and answers.",
    name="reader",
)

graph = shadow.attach(create_swarm([finder, reader], default_active_agent="finder").compile())
