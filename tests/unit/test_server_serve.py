"""`langgraph-shadow serve`, with a server that needs no vLLM."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from langgraph_shadow.cli import app
from langgraph_shadow.server import local

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
# Answers the ready check as vLLM does, and says with which flags it was started.
FAKE_VLLM = """
import http.server, json, sys
print("started with", sys.argv[1:], flush=True)
flag = lambda name: sys.argv[sys.argv.index(name) + 1]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": flag("--served-model-name")}]}).encode())
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(flag("--port"))), Handler).serve_forever()
"""
SERVE = f"""
import sys
from langgraph_shadow.cli import app
from langgraph_shadow.server import local
local.VLLM = (sys.executable, "-c", {FAKE_VLLM!r})
local.check_packages = lambda: None
app()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LANGGRAPH_SHADOW_CACHE", str(tmp_path))
    model = tmp_path / "some-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


@pytest.fixture
def serving(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVE, "serve", "--model", str(folder), "--max-num-seqs", "3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_the_address_and_stops_cleanly(
    serving: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    line = serving.stdout.readline()
    url = line.split()[0]
    assert url.startswith("http://127.0.0.1:")
    assert "model=some-model" in line
    assert f"ChatOpenAI(base_url='{url}', model='some-model'" in serving.stdout.readline()

    serving.send_signal(number)
    _, errors = serving.communicate(timeout=60)
    assert serving.returncode == 130
    assert "Traceback" not in errors
    assert "server: ready after" in errors
    log = next((tmp_path / "logs").iterdir()).read_text()
    assert "'--max-num-seqs', '3'" in log
    assert log.index("'--max-num-seqs', '16'") < log.index("'--max-num-seqs', '3'")


def test_a_wrong_model_is_one_line_and_exit_2(folder: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--model", str(folder / "nothing")])
    assert result.exit_code == 2
    assert "No model at" in result.output
    assert "Traceback" not in result.output


def test_a_server_that_ends_by_itself_is_reported(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(local, "check_packages", lambda: None)
    monkeypatch.setattr(local, "VLLM", (sys.executable, "-c", "raise SystemExit(5)"))
    result = CliRunner().invoke(app, ["serve", "--model", str(folder)])
    assert result.exit_code == 2
    assert "vLLM ended with status 5" in result.output
