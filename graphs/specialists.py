"""Research, critique, text: three roles behind one trunk, so that all share one cache.

State: the question, the researcher's tool calls and results, then one answer of each role, in the
order in which they came. The system prompt and the roles are in no state.
"""

from langgraph.graph import START, MessagesState, StateGraph

from graphs.model import chat_model
from langgraph_shadow import Shadow, user_update
from langgraph_shadow.demo.tools import TOOLS
from langgraph_shadow.specialists import declare, specialist

llm = chat_model()
shadow = Shadow(llm, branches=[user_update(language="English")], guard="warn")

# (1) What stands in front of every prompt, the tools of all roles among it.
declare(shadow, system="You are a team that answers questions about Python.", tools=TOOLS)

# (2) Each role stands behind everything else; only the researcher may call the tools.
researcher = specialist(
    shadow,
    name="researcher",
    role="You are the researcher. Look up what is needed, then say what you found.",
    tools=TOOLS,
)
critic = specialist(
    shadow,
    name="critic",
    role="You are the critic. Name what is wrong or missing in what the researcher says.",
)
writer = specialist(
    shadow,
    name="writer",
    role="You are the writer. Answer the question in three sentences, and heed the critic.",
)

# (3) They are nodes: the graph waits for them, and their answers are in its state.
builder = StateGraph(MessagesState)
builder.add_node("researcher", researcher)
builder.add_node("critic", critic)
builder.add_node("writer", writer)
builder.add_edge(START, "researcher")
builder.add_edge("researcher", "critic")
builder.add_edge("critic", "writer")

graph = shadow.attach(builder.compile())
