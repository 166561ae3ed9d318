"""A deep agent that searches itself and has a subagent read; one shadow speaks about both.

The subagent runs inside the `task` tool, with a history of its own. Its batches are told apart by
the events' `namespace`, which is empty for the main agent.
"""

from deepagents import create_deep_agent

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

reader = {
    "name": "reader",
    "description": "Reads the documentation and says what it found.",
    "system_prompt": "Search the documentation of Python's standard library and read what fits.",
    "tools": TOOLS,
}

graph = shadow.attach(
    create_deep_agent(
        llm,
        TOOLS,
        system_prompt="You answer questions about Python's standard library. Delegate the reading.",
        subagents=[reader],
    )
)
