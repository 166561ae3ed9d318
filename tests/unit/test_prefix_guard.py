"""The pytest fixture `prefix_guard`, in tests of its own."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "langgraph_shadow.testing.plugin"

AGENT = '''
import itertools
import pytest
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def search(topic: str) -> str:
    """Search the archive."""
    return f"{topic}: a third of the ice is gone."


def answers():
    for i in itertools.count():
        call = {"name": "search", "args": {"topic": "ice"}, "id": f"c{i}"}
        yield AIMessage("", tool_calls=[call])
        yield AIMessage("The ice is going.")


class Model(FakeMessagesListChatModel):
    def bind_tools(self, tools, **kwargs):
        return self.bind(tools=tools, **kwargs)


def model():
    return Model(responses=list(itertools.islice(answers(), 8)))


def build(system, llm=None):
    llm = llm or model()
    def agent(state):
        prompt = [SystemMessage(system()), *state["messages"]]
        return {"messages": [llm.invoke(prompt, tools=[{"type": "function"}])]}
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile()


minutes = itertools.count(30)
def steady(): return "You are careful."
def ticking(): return f"You are careful. It is 09:{next(minutes)}:00."
INPUTS = {"messages": [HumanMessage("How much ice is left?")]}
CONFIG = {"configurable": {"thread_id": "t-1"}}
'''


@pytest.fixture
def outcome(pytester: pytest.Pytester) -> Any:
    """Runs a test file that begins with the agent."""
    installed = any(e.value == PLUGIN for e in entry_points(group="pytest11"))

    def run(test: str) -> pytest.RunResult:
        pytester.makepyfile(AGENT + test)
        plugin = () if installed else ("-p", PLUGIN)
        loops = ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function")
        return pytester.runpytest_inprocess(*plugin, *(f"-o{option}" for option in loops))

    return run


def test_an_agent_that_keeps_its_prefix_passes(outcome: Any) -> None:
    result = outcome(
        """
def test_attached(prefix_guard):
    prefix_guard.attach(build(steady)).invoke(INPUTS, CONFIG)
    assert prefix_guard.calls == 2
    assert prefix_guard.breaks == ()

async def test_async(prefix_guard):
    await prefix_guard.attach(build(steady)).ainvoke(INPUTS, CONFIG)

def test_watched_and_attached(prefix_guard):
    graph = prefix_guard.attach(build(steady, prefix_guard.watch(model())))
    graph.invoke(INPUTS, CONFIG)
    assert prefix_guard.calls == 2

def test_without_the_fixture():
    build(ticking).invoke(INPUTS, CONFIG)
"""
    )
    result.assert_outcomes(passed=4)


def test_a_broken_prefix_fails_the_test_itself(outcome: Any) -> None:
    result = outcome(
        """
def test_attached(prefix_guard):
    prefix_guard.attach(build(ticking)).invoke(INPUTS, CONFIG)

async def test_async(prefix_guard):
    await prefix_guard.attach(build(ticking)).ainvoke(INPUTS, CONFIG)

def test_watched(prefix_guard):
    build(ticking, prefix_guard.watch(model())).invoke(INPUTS, CONFIG)

def test_by_config(prefix_guard):
    build(ticking).invoke(INPUTS, {**CONFIG, "callbacks": prefix_guard.callbacks})
"""
    )
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "The agent broke its prefix once in 2 model calls:",
            "  1. The prompt of thread 't-1' in node 'agent' no longer extends the one before it: "
            "clock at messages?0?.content, character *",
            "*Freeze the time when the thread starts*",
        ]
    )


def test_a_run_without_a_thread_id_is_one_history(outcome: Any) -> None:
    result = outcome(
        """
def test_watched(prefix_guard):
    build(ticking, prefix_guard.watch(model())).invoke(INPUTS)

def test_attached(prefix_guard):
    prefix_guard.attach(build(ticking)).invoke(INPUTS)

def test_two_runs(prefix_guard):
    llm = prefix_guard.watch(model())
    for _ in range(2):
        build(steady, llm).invoke(INPUTS)
"""
    )
    result.assert_outcomes(failed=2, passed=1)


def test_a_prompt_that_cannot_be_compared_fails(outcome: Any) -> None:
    result = outcome(
        """
from langgraph_shadow.guard.guard import Guard

def test_lost(prefix_guard, monkeypatch):
    def check(*_, **__):
        raise LookupError("no such wire")
    monkeypatch.setattr(Guard, "check", check)
    prefix_guard.attach(build(steady)).invoke(INPUTS, CONFIG)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*prefix_guard could not compare a prompt: *no such wire*"])


def test_a_guard_that_saw_nothing_fails(outcome: Any) -> None:
    result = outcome(
        """
def test_forgotten(prefix_guard):
    build(steady).invoke(INPUTS, CONFIG)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*prefix_guard saw no model call*prefix_guard.attach(graph)*"])


def test_a_failing_test_keeps_its_own_failure(outcome: Any) -> None:
    result = outcome(
        """
def test_fails(prefix_guard):
    prefix_guard.attach(build(ticking)).invoke(INPUTS, CONFIG)
    assert 1 == 2
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2"])


def test_an_announced_break_passes_and_breaks_can_be_looked_at(outcome: Any) -> None:
    result = outcome(
        """
from langgraph_shadow.testing import PrefixBroken

def test_announced(prefix_guard):
    prefix_guard.expect_break("t-1", "the clock is read once per turn")
    prefix_guard.attach(build(ticking)).invoke(INPUTS, CONFIG)

def test_looked_at(prefix_guard):
    graph = prefix_guard.attach(build(ticking))
    graph.invoke(INPUTS, CONFIG)
    with pytest.raises(PrefixBroken) as broken:
        prefix_guard.assert_unbroken()
    assert [r.kind for r in broken.value.reports] == ["clock"]
    prefix_guard.forgive()

def test_a_graph_that_is_not_compiled(prefix_guard):
    with pytest.raises(TypeError, match="compile"):
        prefix_guard.attach(object())
    prefix_guard.attach(build(steady)).invoke(INPUTS, CONFIG)
"""
    )
    result.assert_outcomes(passed=3)
