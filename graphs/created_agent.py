"""The research agent made with `create_agent`, and its shadow as a middleware.

Needs a vLLM server at `LANGGRAPH_SHADOW_BASE_URL` that serves `LANGGRAPH_SHADOW_MODEL`;
`langgraph-shadow serve` starts one.
"""

from langchain.agents import create_agent

from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.agent import SYSTEM, chat_model, needs_constraint
from langgraph_shadow.demo.constrained_middleware import ConstrainedCalls
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

# The embedded model is too small to write tool calls; any capable model needs no such help.
helpers = [ConstrainedCalls()] if needs_constraint(llm) else []

graph = create_agent(
    llm,
    TOOLS,
    system_prompt=SYSTEM,
    middleware=[*helpers, shadow.middleware()],
)
