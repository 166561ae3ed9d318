"""`langgraph-shadow demo`, run as a person runs it, on the real server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import VllmServer

KEYS = {
    "mode",
    "model",
    "block_size",
    "answer",
    "orchestrator",
    "branches",
    "delivered",
    "dropped",
    "late",
    "ghosts",
}
BRANCH_KEYS = {
    "branch",
    "carrier",
    "prompt_tokens",
    "kept",
    "predicted",
    "cached",
    "ttft_ms",
    "lag_ms",
    "verdict",
    "text",
}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from langgraph_shadow.cli import app; app()", "demo"]
    env = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, env=env, check=False
    )


@pytest.mark.integration
def test_the_json_report_proves_every_branch_a_cache_hit(vllm_server: VllmServer) -> None:
    # The test model's weights are random, so it needs the constraint as much as the embedded one.
    where = ("--base-url", vllm_server.base_url, "--model", vllm_server.model, "--constrained")
    done = run(*where, "--json", "--language", "Swedish")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == KEYS
    assert report["mode"] == "shared"
    assert report["model"] == vllm_server.model
    assert report["block_size"] == vllm_server.metrics().block_size
    assert report["answer"]

    branches = report["branches"]
    assert len(branches) >= 3
    for branch in branches:
        assert set(branch) == BRANCH_KEYS
        assert branch["predicted"] == branch["cached"] > 0
        assert branch["kept"] < branch["prompt_tokens"]
    calls = report["orchestrator"]
    assert calls["calls"] == len(branches) + 1
    assert 0 < calls["cached_tokens"] < calls["prompt_tokens"]
    delivered = sum(branch["verdict"] == "update" for branch in branches)
    assert report["delivered"] + report["late"] == delivered
    assert report["ghosts"] == 0
    assert report["dropped"] == 0

    for shown in ("search_docs(", "read_doc(", "answer ▸", "constrained", "Shadow ledger"):
        assert shown in done.stderr


@pytest.mark.integration
def test_without_json_everything_is_on_stdout_in_plain_lines(vllm_server: VllmServer) -> None:
    done = run("--base-url", vllm_server.root_url, "--constrained", "--question", "Copy a file?")
    assert done.returncode == 0, done.stderr
    assert "you    ▸ Copy a file?" in done.stdout
    assert "Tokens predicted = tokens cached on" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.integration
def test_a_model_that_is_not_served_is_named_with_those_that_are(vllm_server: VllmServer) -> None:
    done = run("--base-url", vllm_server.base_url, "--model", "gpt-nope")
    assert done.returncode == 2
    assert "'gpt-nope'" in done.stderr
    assert f"--model with one of: {vllm_server.model}" in done.stderr


def test_no_server_is_one_clear_sentence() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = run("--base-url", f"http://127.0.0.1:{port}/v1", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "No model server answers" in done.stderr
    assert "--base-url" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_that_is_none_is_one_clear_sentence() -> None:
    done = run("--base-url", "localhost")
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_blank_language_is_refused_before_anything_starts() -> None:
    done = run("--language", "  ")
    assert done.returncode == 2
    assert "'--language'" in done.stderr


def test_an_unknown_guard_mode_lists_the_known_ones() -> None:
    done = run("--guard", "sometimes")
    assert done.returncode == 2
    assert "'reject'" in done.stderr
