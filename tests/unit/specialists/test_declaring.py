"""Tools are declared once, in one order, and what cannot be is refused when it is written down."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from langgraph_shadow import Shadow
from langgraph_shadow.specialists import declare, specialist
from langgraph_shadow.specialists.team import team_of
from tests.unit.specialists.desk import Toolbox


def new_shadow() -> Shadow:
    return Shadow(ChatOpenAI(base_url="http://127.0.0.1:9/v1", model="m", api_key="x"), branches=[])


@pytest.fixture
def shadow() -> Shadow:
    return new_shadow()


def names(shadow: Shadow) -> list[str]:
    return [str(tool["function"]["name"]) for tool in team_of(shadow).tools()]


def test_tools_stand_in_the_order_of_the_specialists(shadow: Shadow) -> None:
    box = Toolbox()
    specialist(shadow, name="a", role="A.", tools=[box.publish])
    specialist(shadow, name="b", role="B.", tools=ToolNode([box.search, box.publish]))
    assert names(shadow) == ["publish", "search"]


def test_declared_tools_keep_their_order(shadow: Shadow) -> None:
    box = Toolbox()
    head = declare(shadow, system="S.", tools=[box.search, box.publish])
    specialist(shadow, name="a", role="A.", tools=[box.publish])
    assert names(shadow) == [t.name for t in head.tools] == ["search", "publish"]


def test_two_shadows_have_nothing_in_common(shadow: Shadow) -> None:
    other = new_shadow()
    specialist(shadow, name="a", role="A.", tools=[Toolbox().search])
    assert names(other) == []


def test_a_function_is_a_tool(shadow: Shadow) -> None:
    def look(at: str) -> str:
        """Look at it."""
        return at

    specialist(shadow, name="a", role="A.", tools=[look])
    assert names(shadow) == ["look"]


def test_declaring_comes_first_and_once(shadow: Shadow) -> None:
    declare(shadow, system="S.")
    with pytest.raises(ValueError, match="comes once"):
        declare(shadow, system="S.")
    late = new_shadow()
    specialist(late, name="a", role="A.", tools=[Toolbox().search])
    with pytest.raises(ValueError, match="before its first specialist"):
        declare(late, system="S.")


def test_a_tool_that_was_not_declared(shadow: Shadow) -> None:
    box = Toolbox()
    declare(shadow, tools=[box.search])
    with pytest.raises(ValueError, match="'publish' is not among the declared"):
        specialist(shadow, name="a", role="A.", tools=[box.publish])


def test_a_tool_that_comes_after_the_first_prompt(shadow: Shadow) -> None:
    specialist(shadow, name="a", role="A.")
    names(shadow)
    with pytest.raises(ValueError, match="after the first prompt"):
        specialist(shadow, name="b", role="B.", tools=[Toolbox().search])


def test_two_tools_of_one_name(shadow: Shadow) -> None:
    specialist(shadow, name="a", role="A.", tools=[Toolbox().search])
    with pytest.raises(ValueError, match="another tool is named 'search'"):
        specialist(shadow, name="b", role="B.", tools=[Toolbox().search])

    @tool
    def search() -> str:
        """Another one."""
        return ""

    other = new_shadow()
    with pytest.raises(ValueError, match="two tools are named 'search'"):
        declare(other, tools=[search, Toolbox().search])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "the critic"}, "its name has to be"),
        ({"role": "  "}, "its role is empty"),
        ({"must_call": True}, "must call a tool and has none"),
        ({"max_calls": 0}, "at least 1"),
    ],
)
def test_values_out_of_range(shadow: Shadow, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        specialist(shadow, **{"name": "a", "role": "A.", **options})


@pytest.mark.parametrize("writes", [3, None, Command(goto="b", update=[("messages", [])])])
def test_writes_that_lead_nowhere(shadow: Shadow, writes: Any) -> None:
    with pytest.raises(TypeError, match="writes"):
        specialist(shadow, name="a", role="A.", writes=writes)


def test_nothing_of_the_library_needs_specialists() -> None:
    seen = "import sys, langgraph_shadow; print([m for m in sys.modules if 'specialists' in m])"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
