"""Several servers behind one address, without vLLM: what is checked, and what is said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from langgraph_shadow.cli import app
from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server import cluster, pair, router
from langgraph_shadow.server.cluster import Replicas, check_machine
from langgraph_shadow.server.pair import PrefillDecode, Transfer
from tests.unit.test_server_serve import FAKE_VLLM, ROOT

SERVE = f"""
import sys
from langgraph_shadow.cli import app
from langgraph_shadow.server import cluster, local, pair
local.VLLM = (sys.executable, "-c", {FAKE_VLLM.replace("HTTPServer", "ThreadingHTTPServer")!r})
local.check_packages = cluster.check_packages = lambda: None
pair.check_nixl = lambda: None
cluster.cores_of_servers = pair.cores_of_servers = lambda: ["0", "1"]
app()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LANGGRAPH_SHADOW_CACHE", str(tmp_path))
    model = tmp_path / "some-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


def test_too_few_cores_are_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "cores_of_servers", lambda: ["0"])
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(ServerConfigError, match="2 servers need 2 CPU cores, and there are 1"):
        check_machine("tiny", 2, {})


def test_too_little_memory_is_said_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "cores_of_servers", lambda: ["0", "1"])
    monkeypatch.setattr(cluster, "_free_memory", lambda: 7.4)
    check_machine("tiny", 2, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    with pytest.raises(
        ServerConfigError, match=r"need about 8 GiB of memory, and 7.4 GiB are free"
    ):
        check_machine("tiny", 2, {"VLLM_CPU_KVCACHE_SPACE": "2"})


def test_replicas_are_pinned_apart(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(cluster, "cores_of_servers", lambda: ["3", "2"])
    made = Replicas(folder, count=2)
    cores = [server._env["VLLM_CPU_OMP_THREADS_BIND"] for server in made.servers]
    assert cores == ["3", "2"]
    assert len({server.port for server in made.servers} | {made.router.port}) == 3
    assert [s.root_url for s in made.servers] == [a for a in made.router.args if "http" in a]


def test_a_missing_package_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for module, name, arguments in (
        (router, "vllm-router", ["--replicas", "2"]),
        (pair, "nixl", ["--pd"]),
    ):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
        result = CliRunner().invoke(app, ["serve", "--model", str(folder), *arguments])
        assert result.exit_code == 2
        assert f"error: Not installed for {sys.executable}: {name}" in result.output
        assert "Run: pip install" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replicas", "2", "--cpus", "0"], "--cpus is for one server"),
        (["--pd", "--replicas", "2"], "--pd starts one server of each kind"),
        (["--replicas", "0"], "'--replicas'"),
    ],
)
def test_flags_that_do_not_go_together(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert said in result.output


def test_both_ends_are_told_how_blocks_move(folder: Path) -> None:
    transfer = Transfer(decoder_kv_blocks_ttl=60)
    made = PrefillDecode(folder, transfer=transfer, prefill_cache=False)
    for server, role in ((made.prefill, "kv_producer"), (made.decode, "kv_consumer")):
        flags = server._extra_args
        config: dict[str, Any] = json.loads(flags[flags.index("--kv-transfer-config") + 1])
        assert config["kv_connector"] == "NixlConnector"
        assert config["kv_role"] == role
        assert config["kv_connector_extra_config"] == {
            "bidirectional_kv_xfer": True,
            "kv_recompute_threshold": 64,
            "decoder_kv_blocks_ttl": 60,
            "kv_lease_duration": 30,
        }
    assert "--no-enable-prefix-caching" in made.prefill._extra_args
    assert "--no-enable-prefix-caching" not in made.decode._extra_args
    ports = [s._env["VLLM_NIXL_SIDE_CHANNEL_PORT"] for s in (made.prefill, made.decode)]
    assert ports[0] != ports[1]
    assert str(transfer).endswith("kv_recompute_threshold 64 tokens, decoder_kv_blocks_ttl 60 s")


@pytest.mark.skipif(find_spec("vllm_router") is None, reason="vllm-router is not installed")
@pytest.mark.parametrize("kind", [["--replicas", "2"], ["--pd"]])
def test_one_command_starts_all_and_a_signal_stops_all(folder: Path, kind: list[str]) -> None:
    command = [sys.executable, "-c", SERVE, "serve", "--model", str(folder), *kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            lines = [process.stdout.readline() for _ in range(4)]
            process.send_signal(signal.SIGTERM)  # SIGINT is ignored below a shell's background job
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert lines[0].startswith("http://127.0.0.1:")
    assert "model=some-model" in lines[0]
    assert "ChatOpenAI(base_url=" in lines[1]
    names = ("replica 1", "replica 2") if len(kind) > 1 else ("prefill", "decode")
    assert names[0] in lines[0]
    assert names[1] in lines[2]
    assert "router log=" in lines[3]
    assert process.returncode == 130
    assert "Traceback" not in errors
