"""The example graphs load without a server, and are the graph that the demo runs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from langgraph_shadow import Shadow
from langgraph_shadow.demo.agent import agent_node, chat_model, needs_constraint, research_graph

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph as `langgraph dev` finds it; sockets are closed to unit tests."""
    path, variable = json.loads((ROOT / "langgraph.json").read_text())["graphs"][name].split(":")
    return runpy.run_path(str(ROOT / path))[variable]


def drawn(graph: CompiledStateGraph[Any, Any, Any, Any]) -> tuple[set[str], set[tuple[str, str]]]:
    picture = graph.get_graph()
    return set(picture.nodes), {(edge.source, edge.target) for edge in picture.edges}


def test_the_hand_built_example_is_the_demos_graph() -> None:
    llm = chat_model("http://127.0.0.1:9/v1", "smollm2")
    demo = research_graph(agent_node(llm), Shadow(llm))
    assert drawn(load("research_agent")) == drawn(demo)
    assert {"agent", "tools"} < drawn(demo)[0]


def test_the_created_example_has_a_model_and_tools() -> None:
    pytest.importorskip("langchain")
    assert {"model", "tools"} < drawn(load("created_agent"))[0]


def test_the_address_and_the_model_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LANGGRAPH_SHADOW_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("LANGGRAPH_SHADOW_MODEL", "big")
    llm = chat_model()
    assert (llm.openai_api_base, llm.model_name) == ("http://127.0.0.1:9/v1", "big")
    assert not needs_constraint(llm)
    assert needs_constraint(chat_model(model="smollm2"))
