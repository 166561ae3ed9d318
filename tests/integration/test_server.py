"""The local server: started, served, stopped, and never left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import psutil
import pytest

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.local import LocalServer
from langgraph_shadow.server.metrics import fetch_metrics

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

    from tests.conftest import VllmServer

ROOT = Path(__file__).resolve().parents[2]
SERVE = "from langgraph_shadow.cli import app; app()"


def test_prefix_is_cached_and_reported(llm: ChatOpenAI, vllm_server: VllmServer) -> None:
    prompt = f"{time.time_ns()} " + "Tell me about glaciers. " * 60
    before, seen = vllm_server.metrics(), vllm_server.requests_seen()
    cold, warm = llm.invoke(prompt), llm.invoke(prompt)
    after = vllm_server.metrics()

    assert after.block_size == 32
    assert after.enable_prefix_caching is True
    tokens = warm.usage_metadata["input_tokens"]
    cached = warm.usage_metadata["input_token_details"]["cache_read"]
    assert cached == (tokens - 1) // 32 * 32
    assert cold.usage_metadata["input_token_details"]["cache_read"] < 32
    assert vllm_server.requests_seen() - seen == 2
    assert after.prefix_cache_hits - before.prefix_cache_hits == cached
    assert after.prefix_cache_queries - before.prefix_cache_queries == 2 * tokens
    assert after.requests_finished - before.requests_finished == 2
    assert after.ttft_count - before.ttft_count == 2


async def test_async_model_in_one_loop(llm: ChatOpenAI) -> None:
    assert (await llm.ainvoke("hello")).usage_metadata["output_tokens"] > 0


async def test_async_model_in_the_next_loop(llm: ChatOpenAI) -> None:
    assert (await llm.ainvoke("hello")).usage_metadata["output_tokens"] > 0


def test_template_extends_inside_a_tool_loop_on_the_server(vllm_server: VllmServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]

    def tokens(messages: list[dict[str, object]]) -> list[int]:
        body = {"model": vllm_server.model, "messages": messages, "tools": [tool]}
        answer = httpx2.post(f"{vllm_server.root_url}/tokenize", json=body, trust_env=False)
        return answer.raise_for_status().json()["tokens"]

    first, second = tokens(history[:2]), tokens(history)
    assert second[: len(first)] == first
    third = tokens([*history, {"role": "user", "content": "Anything to tell?"}])
    kept = len(tokens_in_common(second, third))
    assert len(second) - kept <= 3


def tokens_in_common(one: list[int], other: list[int]) -> list[int]:
    pairs = zip(one, other, strict=False)
    length = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return one[:length]


def test_serve_passes_flags_on_and_nothing_outlives_its_kill() -> None:
    command = [sys.executable, "-c", SERVE, "serve", "--model", "tiny", "--block-size", "64"]
    owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    base_url = owner.stdout.readline().split()[0]
    root_url = base_url.removesuffix("/v1")
    assert fetch_metrics(root_url).block_size == 64, "the caller's flag wins over the default"
    processes = psutil.Process(owner.pid).children(recursive=True)
    assert len(processes) >= 3, "keeper, API server and engine"
    engines = [process for process in processes if process.name().startswith("VLLM::")]
    assert [engine.name()[:12] for engine in engines] == ["VLLM::Engine"], "no worker that spins"
    if sys.platform == "linux":
        assert len(engines[0].cpu_affinity()) == 1

    owner.kill()
    owner.wait()
    owner.stdout.close()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    with pytest.raises(ServerConfigError, match="could not be read"):
        fetch_metrics(root_url)


def test_a_flag_that_vllm_does_not_know_is_shown_with_the_log() -> None:
    server = LocalServer("tiny", extra_args=["--no-such-flag"])
    with pytest.raises(ServerConfigError, match="--no-such-flag") as caught, server:
        pass
    assert str(server.log_path) in str(caught.value)
    assert not server.running
