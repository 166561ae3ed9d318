"""A supervisor and a worker (langgraph-supervisor); attached once, the shadow sees both."""

from langchain.agents import create_agent
from langgraph_supervisor import create_supervisor

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.agent import SYSTEM
from langgraph_shadow.demo.tools import TOOLS

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

researcher = create_agent(llm, TOOLS, system_prompt=SYSTEM, name="researcher")

graph = shadow.attach(
    create_supervisor(
        [researcher],
        model=llm,
        prompt="You answer questions about Python. Have the researcher look things up first.",
    ).compile()
)
