"""A research agent made with `create_agent`, and its shadow as a middleware."""

from langchain.agents import create_agent

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.agent import SYSTEM
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

graph = create_agent(llm, TOOLS, system_prompt=SYSTEM, middleware=[shadow.middleware()])
