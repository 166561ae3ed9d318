"""The examples under `langgraph dev`: it loads them, streams their events, and flags nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import VllmServer

pytest.importorskip("langgraph_api", reason="needs langgraph-cli[inmem]")
sdk = pytest.importorskip("langgraph_sdk")

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = json.loads((ROOT / "langgraph.json").read_text())
START_S = 180

BATCHES = {
    "research_agent": 3,
    "created_agent": 3,
    "deep_agent": 7,
    "supervisor": 5,
    "swarm": 5,
    "subgraph_agent": 3,
    "specialists": 3,
    "specialists_role_first": 3,
}

HISTORIES = dict.fromkeys(BATCHES, 1) | dict.fromkeys(("deep_agent", "supervisor", "swarm"), 2)
"""Histories of a graph: the answer that ends one may come before its last branch has spoken."""

TELLING = '''
"""A random model has nothing to tell; this branch makes it tell."""

from langchain.agents import create_agent

from graphs.model import chat_model
from langgraph_shadow import Shadow
from langgraph_shadow.demo.tools import TOOLS
from langgraph_shadow.testing import ghost_branch

llm = chat_model()
shadow = Shadow(llm, branches=[ghost_branch()])
graph = create_agent(llm, TOOLS, middleware=[shadow.middleware()])
'''

BLOCKING = '''
"""A graph that `langgraph dev` must refuse, else it would refuse nothing."""

import time

from langgraph.graph import START, MessagesState, StateGraph


async def sleep(state: MessagesState):
    time.sleep(0.01)


graph = StateGraph(MessagesState).add_node(sleep).add_edge(START, "sleep").compile()
'''


@dataclass(frozen=True)
class DevServer:
    url: str
    log: Path

    async def stream(self, graph: str) -> tuple[list[Any], dict[str, Any]]:
        """Ask a graph one question in a new thread: what was streamed, and the state at the end."""
        client = sdk.get_client(url=self.url, api_key=None)
        thread = await client.threads.create()
        question = {"role": "user", "content": "How do I read a CSV file into dictionaries?"}
        stream = client.runs.stream(
            thread["thread_id"],
            graph,
            input={"messages": [question]},
            stream_mode=["custom", "messages-tuple"],
            stream_subgraphs=True,
        )
        parts = [part async for part in stream]
        return parts, await client.threads.get_state(thread["thread_id"])

    def records(self) -> list[dict[str, Any]]:
        """What the server has logged so far."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def dev(vllm_server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """`langgraph dev` on this project's langgraph.json and two graphs more."""
    folder = tmp_path_factory.mktemp("dev")  # it keeps its state in the folder that it is run in
    for package in ("graphs", "langgraph_shadow"):
        (folder / package).symlink_to(ROOT / package)
    (folder / "telling.py").write_text(TELLING)
    (folder / "blocking.py").write_text(BLOCKING)
    more = {name: f"./{name}.py:graph" for name in ("telling", "blocking")}
    config = {**CONFIG, "graphs": {**CONFIG["graphs"], **more}}
    (folder / "langgraph.json").write_text(json.dumps(config))

    port, log = free_port(), folder / "log.txt"
    command = [sys.executable, "-c", "from langgraph_cli.cli import cli; cli()", "dev"]
    options = ["--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(port)]
    offline = {
        "LANGSMITH_TRACING": "false",
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_NO_VERSION_CHECK": "1",
    }
    env = {
        **os.environ,
        **offline,
        "LOG_JSON": "true",
        "LANGGRAPH_SHADOW_BASE_URL": vllm_server.base_url,
        "LANGGRAPH_SHADOW_MODEL": vllm_server.model,
        "LANGGRAPH_SHADOW_SMALL_MODEL": "1",
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *options], cwd=folder, env=env, stdout=out, stderr=out
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process, log)
            yield DevServer(url, log)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/ok", trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"langgraph dev was not ready in {START_S} s: {log.read_text()[-3000:]}")


def shadow_events(parts: list[Any]) -> list[dict[str, Any]]:
    return [part.data for part in parts if part.event.partition("|")[0] == "custom"]


@pytest.mark.parametrize("graph", CONFIG["graphs"])
async def test_an_example_streams_an_event_for_each_batch(dev: DevServer, graph: str) -> None:
    parts, state = await dev.stream(graph)
    assert [part.data for part in parts if part.event == "error"] == []
    events = shadow_events(parts)
    assert {event["type"] for event in events} <= {"shadow.update", "shadow.skip"}
    heard = len({tuple(event["tool_call_ids"]) for event in events})
    assert BATCHES[graph] - HISTORIES[graph] <= heard <= BATCHES[graph]
    assert state["values"]["messages"][-1]["type"] == "ai"
    assert state["next"] == []


async def test_an_update_is_streamed_and_enters_nothing_else(dev: DevServer) -> None:
    parts, state = await dev.stream("telling")
    events = shadow_events(parts)
    assert [event["type"] for event in events] == ["shadow.update"] * 3
    assert all(event["text"].startswith("The mark is ghost-") for event in events)
    others = [part.data for part in parts if part.event.partition("|")[0] != "custom"]
    assert "ghost-" not in json.dumps([others, state])


async def test_nothing_of_ours_is_flagged(dev: DevServer) -> None:
    parts, _ = await dev.stream("blocking")
    [error] = [part.data for part in parts if part.event == "error"]
    assert "Blocking" in json.dumps(error), "langgraph dev no longer looks for blocking calls"

    for graph in ("research_agent", "created_agent"):
        already = len(dev.records())
        parts, _ = await dev.stream(graph)
        logged = dev.records()[already:]
        assert logged
        ours = [r for r in logged if r.get("logger", "").startswith("langgraph_shadow")]
        assert [r for r in ours if r["level"] != "info"] == []
        assert "Blocking" not in json.dumps(logged)
