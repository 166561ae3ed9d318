"""Errors are part of the interface: what was wrong, where, what to do."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_openai import ChatOpenAI
from langgraph.graph import MessagesState, StateGraph

from langgraph_shadow import Branch, Shadow, user_update
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Limits, Options

LLM = ChatOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", model="m", use_responses_api=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"guard": "strict"}, "guard: .*'warn'.*got 'strict'"),
        ({"launch": "later"}, "launch: .*'follow'.*got 'later'"),
        ({"timeout": 0}, "timeout: .*greater than 0"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"nonsense": 1}, "nonsense: .*(not permitted|unexpected)"),
    ],
)
def test_an_option_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Shadow(LLM, **options)


def test_a_model_that_speaks_another_protocol() -> None:
    with pytest.raises(TypeError, match=r"ChatOpenAI.*FakeListChatModel"):
        Shadow(FakeListChatModel(responses=["x"]))  # type: ignore[arg-type]


def test_a_bound_model_says_to_pass_the_model_itself() -> None:
    with pytest.raises(TypeError, match=r"before bind_tools\(\)"):
        Shadow(LLM.bind(stop=["x"]))  # type: ignore[arg-type]


def test_an_empty_instruction() -> None:
    with pytest.raises(ValueError, match="instruction is empty"):
        Branch(name="quiet", instruction="   ")


def test_two_branches_of_one_name() -> None:
    with pytest.raises(ValueError, match="two branches are named 'user_update'"):
        Shadow(LLM, branches=[user_update(), user_update(language="Swedish")])


def test_a_graph_that_is_not_compiled() -> None:
    with pytest.raises(TypeError, match="compiled graph, not StateGraph"):
        Shadow(LLM).attach(StateGraph(MessagesState))


def test_a_tool_node_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"tool_node\(\) takes .*not int"):
        Shadow(LLM).tool_node(3)


def test_a_thing_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    once, log = Once(), logging.getLogger("langgraph_shadow.test")
    for _ in range(3):
        once.warn(log, "key", "said %s", "once")
    assert [r.getMessage() for r in caplog.records] == ["said once"]


def test_every_limit_is_a_typed_keyword() -> None:
    keywords = set(Limits.__annotations__) | {"guard", "launch"}
    assert keywords == set(Options.model_fields)
