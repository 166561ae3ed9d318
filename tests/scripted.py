"""Agents of five libraries over the real model, each with a script that it cannot leave.

The script chooses what the model says by constrained decoding, which leaves the prompt's tokens
unchanged (facts/vllm.md, "Models without a model hub"). Unlike `tests/agents.py` it does so inside
the model, so that it works where the test does not make the model call.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    ToolRetryMiddleware,
)
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, interrupt
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm

from langgraph_shadow import Shadow, ShadowEvent
from tests.agents import GLACIERS, SYSTEM

BATCHES = 2
PARALLEL = 2
PATIENCE_S = 60.0

Situation = Literal["plain", "interrupt", "retry", "approval"]
Door = Literal["attach", "own"]
Calls = list[tuple[str, dict[str, Any]]]


def next_calls(tools: set[str], made: Sequence[str], question: str) -> Calls:
    """What an agent calls next, by its tools and its calls since the question; [] ends it."""
    searched = made.count("search") // PARALLEL
    search: Calls = [("search", {"topic": f"ice {searched}.{i}"}) for i in range(PARALLEL)]
    if "transfer_to_reader" in tools and "search" not in tools:  # a supervisor
        return [] if "transfer_to_reader" in made else [("transfer_to_reader", {})]
    if "task" in tools or "transfer_to_reader" in tools:  # it searches once, then hands over
        if not searched:
            return search
        if "task" in tools and "task" not in made:
            return [("task", {"description": question, "subagent_type": "reader"})]
        if "transfer_to_reader" in tools and "transfer_to_reader" not in made:
            return [("transfer_to_reader", {})]
        return []
    return search if searched < BATCHES else []


class ScriptedChat(ChatOpenAI):
    """A model that says what `next_calls` says, by the history and the tools it is sent."""

    def _get_request_payload(self, input_: Any, *, stop: Any = None, **kwargs: Any) -> dict:
        payload = super()._get_request_payload(input_, stop=stop, **kwargs)
        tools = {t["function"]["name"] for t in payload.get("tools") or ()}
        calls = next_calls(tools, *_history(payload["messages"]))
        written = [json.dumps({"name": name, "arguments": args}) for name, args in calls]
        text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)
        choice = {"choice": [text or "The ice retreats, and it does so faster every year."]}
        payload["extra_body"] = {**payload.get("extra_body", {}), "structured_outputs": choice}
        payload["max_completion_tokens"] = 400
        return payload


def _history(messages: Sequence[dict[str, Any]]) -> tuple[list[str], str]:
    """The calls made since the last question, and the question."""
    made: list[str] = []
    for message in reversed(messages):
        if message["role"] == "user":
            return made, str(message["content"])
        made += [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return made, ""


@dataclass
class Archive:
    """The tools' side: what was searched, and what goes wrong there.

    A search of the second batch waits until a verdict on the first was heard, so that a branch
    always runs and speaks while the graph does. With `repeats` a tool tells what it heard: a leak.
    """

    situation: Situation = "plain"
    found: set[str] = field(default_factory=set)
    tries: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)
    said: str = ""
    repeats: bool = False
    news: threading.Condition = field(default_factory=threading.Condition)

    def hear(self, event: ShadowEvent) -> None:
        with self.news:
            self.heard[event.thread] += 1
            self.said = event.text
            self.news.notify_all()

    def search(self, topic: str, thread: str, call_id: str) -> str:
        turn, _, place = topic.removeprefix("ice ").partition(".")
        with self.news:
            if not self.news.wait_for(lambda: self.heard[thread] >= int(turn), PATIENCE_S):
                msg = f"no verdict on the first batch within {PATIENCE_S} s"
                raise TimeoutError(msg)
        last = int(place) == PARALLEL - 1
        if self.situation == "interrupt" and last:
            interrupt("May I?")
        self.fail_once(f"{thread} {call_id}")
        self.found.add(call_id)
        return f"{topic}: {GLACIERS * 4}{self.said if self.repeats else ''}"

    def fail_once(self, what: str) -> None:
        self.tries[what] += 1
        if self.situation == "retry" and self.tries[what] == 1:
            msg = "the first try fails"
            raise ConnectionError(msg)

    def tools(self) -> list[BaseTool]:
        @tool
        def search(topic: str, runtime: ToolRuntime) -> str:
            """Search the archive for a topic."""
            thread = runtime.config["configurable"]["thread_id"]
            return self.search(topic, thread, str(runtime.tool_call_id))

        return [search]


class FailsAfterTheModel(AgentMiddleware[Any, Any]):
    """Loses each answer once, so that the same prompt is sent again."""

    def __init__(self, archive: Archive) -> None:
        super().__init__()
        self.archive = archive

    def _lose(self, request: Any) -> None:
        self.archive.fail_once(_last_id(request.messages))

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        response = handler(request)
        self._lose(request)
        return response

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        response = await handler(request)
        self._lose(request)
        return response


def _last_id(messages: Sequence[Any]) -> str:
    return str(messages[-1].id)


@dataclass
class Setting:
    """Everything an agent is built from."""

    llm: ChatOpenAI
    shadow: Shadow
    archive: Archive
    saver: Any
    door: Door

    def middleware(self, *, approval: bool = True) -> list[AgentMiddleware[Any, Any]]:
        found: list[AgentMiddleware[Any, Any]] = []
        if self.archive.situation == "retry":
            patient = {"initial_delay": 0.0, "jitter": False, "retry_on": (ConnectionError,)}
            found += [ModelRetryMiddleware(on_failure="error", **patient)]
            found += [ToolRetryMiddleware(on_failure="error", **patient)]
            found += [FailsAfterTheModel(self.archive)]
        if self.archive.situation == "approval" and approval:
            found.append(HumanInTheLoopMiddleware(interrupt_on={"search": True}))
        if self.door == "own":
            found.append(self.shadow.middleware())
        return found

    def agent(self, name: str, *more_tools: BaseTool) -> Any:
        return create_agent(
            self.llm,
            [*self.archive.tools(), *more_tools],
            system_prompt=f"{SYSTEM} You are the {name}.",
            middleware=self.middleware(),
            name=name,
        )

    def finish(self, graph: Any) -> Any:
        return self.shadow.attach(graph) if self.door == "attach" else graph


def hand_built(setting: Setting) -> Any:
    """agent → tools → agent …, with retry policies, and a static interrupt for approval."""
    archive, tools = setting.archive, setting.archive.tools()
    own = setting.door == "own"
    bound = (setting.shadow.watch(setting.llm) if own else setting.llm).bind_tools(tools)

    def prompt(state: MessagesState) -> list[Any]:
        return [SystemMessage(SYSTEM), *state["messages"]]

    def agent(state: MessagesState) -> dict[str, Any]:
        answer = bound.invoke(prompt(state))
        archive.fail_once(_last_id(state["messages"]))
        return {"messages": [answer]}

    async def aagent(state: MessagesState) -> dict[str, Any]:
        answer = await bound.ainvoke(prompt(state))
        archive.fail_once(_last_id(state["messages"]))
        return {"messages": [answer]}

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    patient = RetryPolicy(initial_interval=0, jitter=False, retry_on=ConnectionError)
    # each try of the node runs every call of the batch, and each call fails once
    very_patient = RetryPolicy(
        initial_interval=0, jitter=False, retry_on=ConnectionError, max_attempts=PARALLEL + 1
    )
    node = ToolNode(tools)
    builder = StateGraph(MessagesState)
    builder.add_node("agent", RunnableLambda(agent, aagent), retry_policy=patient)
    builder.add_node(
        "tools", setting.shadow.tool_node(node) if own else node, retry_policy=very_patient
    )
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    before = ["tools"] if archive.situation == "approval" else None
    return setting.finish(builder.compile(setting.saver, interrupt_before=before))


def created(setting: Setting) -> Any:
    """The same by `create_agent`."""
    return setting.finish(
        create_agent(
            setting.llm,
            setting.archive.tools(),
            system_prompt=SYSTEM,
            middleware=setting.middleware(),
            checkpointer=setting.saver,
        )
    )


def deep(setting: Setting) -> Any:
    """A deep agent that searches, then gives the rest to a subagent, which runs inside a tool."""
    approval = {"search": True} if setting.archive.situation == "approval" else None
    reader = {
        "name": "reader",
        "description": "Reads on.",
        "system_prompt": "You read on.",
        "tools": setting.archive.tools(),
        "middleware": setting.middleware(approval=False),
    }
    graph = create_deep_agent(
        setting.llm,
        setting.archive.tools(),
        system_prompt=SYSTEM,
        middleware=setting.middleware(approval=False),
        subagents=[reader],
        interrupt_on=approval,
        checkpointer=setting.saver,
    )
    return setting.finish(graph)


def supervisor(setting: Setting) -> Any:
    """A supervisor and one worker that does the searching."""
    llm = setting.shadow.watch(setting.llm) if setting.door == "own" else setting.llm
    builder = create_supervisor(
        [setting.agent("reader")], model=llm, prompt=SYSTEM, output_mode="full_history"
    )
    return setting.finish(builder.compile(setting.saver))


def swarm(setting: Setting) -> Any:
    """Two peers: one searches once and hands over to the other."""
    handoff = create_handoff_tool(agent_name="reader")
    agents = [setting.agent("finder", handoff), setting.agent("reader")]
    builder = create_swarm(agents, default_active_agent="finder")
    return setting.finish(builder.compile(setting.saver))


BUILD: dict[str, Callable[[Setting], Any]] = {
    "hand_built": hand_built,
    "created": created,
    "deep": deep,
    "supervisor": supervisor,
    "swarm": swarm,
}
