"""`langgraph-shadow check` from the outside."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from langgraph_shadow.commands.check import check
from tests.unit.guard_histories import TOOLS, loop

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).resolve().parents[2] / "../shared/data"

app = typer.Typer()
app.command()(check)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def write(folder: Path, *bodies: Any) -> str:
    file = folder / "run.jsonl"
    file.write_text("".join(json.dumps(b) + "\n" for b in bodies), encoding="utf-8")
    return str(file)


def body(steps: int, head: str = "Be kind.", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": loop(steps, head=head), "tools": TOOLS, **more}


class _Vllm(BaseHTTPRequestHandler):
    """As much of a vLLM server as `check` asks for; a token is a character of the messages."""

    tokenizes = True

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._answer(200, 'vllm:cache_config_info{block_size="8"} 1.0\n', "text/plain")
        else:
            self._answer(200, json.dumps({"data": [{"id": "served"}]}))

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.tokenizes or sent["model"] != "served":
            self._answer(404, "{}")
            return
        text = "".join(f"<{m['role']}>{m['content']}" for m in sent["messages"])
        text += "<assistant>" * sent["add_generation_prompt"]
        self._answer(200, json.dumps({"tokens": [ord(c) for c in text]}))

    def log_message(self, *_args: object) -> None:
        pass

    def _answer(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Handler", (_Vllm,), {"tokenizes": getattr(request, "param", True)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/v1"
        http.shutdown()
        thread.join()


def test_a_clean_run(tmp_path: Path) -> None:
    file = write(tmp_path, *(body(n) for n in range(3)))

    as_json, plain = run(file, "--json"), run(file)

    assert as_json.exit_code == plain.exit_code == 0
    said = json.loads(as_json.stdout)
    assert (said["format"], said["requests"], said["breaks"], said["unknown"]) == (
        "requests", 3, [], []
    )  # fmt: skip
    assert plain.stdout.startswith("3 requests, no break.\nreusable: ")


def test_a_run_with_a_clock(tmp_path: Path) -> None:
    bodies = [body(n, f"It is 12:0{n}.", thread_id="t-1") for n in range(2)]
    file = write(tmp_path, body(1, thread_id="t-2"), *bodies)

    as_json, plain = run(file, "--json"), run(file)

    assert as_json.exit_code == plain.exit_code == 1
    (found,) = json.loads(as_json.stdout)["breaks"]
    assert {k: found[k] for k in ("index", "thread", "kind", "path", "offset", "lost_tokens")} == {
        "index": 2, "thread": "t-1", "kind": "clock", "path": "messages[0].content", "offset": 10,
        "lost_tokens": None,
    }  # fmt: skip
    assert 0 < found["lost_share"] <= 1
    assert found["repair"].startswith("Freeze the time")
    assert "3 requests, 1 that break the prefix" in plain.stdout
    assert "clock: Freeze the time" in plain.stdout


def test_what_was_recorded_is_shown_as_it_is(tmp_path: Path) -> None:
    bodies = [body(1, "[/b] [red]x", thread_id="\ud800"), body(2, "[bold] y", thread_id="\ud800")]
    file = write(tmp_path, *bodies)

    as_json, plain = run(file, "--json"), run(file)

    assert as_json.exit_code == plain.exit_code == 1
    assert json.loads(as_json.stdout)["breaks"][0]["thread"] == "\ud800"
    assert "[/b]" in plain.stdout
    assert "[bold]" in plain.stdout


def test_an_unreadable_line_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, body(1), {"model": "m"})

    outcome = run(file, "--json")

    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith(f"error: {file}:2: messages: Field required; expected one")


def test_a_server_counts_the_tokens(tmp_path: Path, server: str) -> None:
    file = write(tmp_path, body(1), body(2, "Be brief."))

    outcome = run(file, "--json", "--base-url", server)

    assert outcome.exit_code == 1
    (found,) = json.loads(outcome.stdout)["breaks"]
    rendered = "".join(f"<{m['role']}>{m['content']}" for m in loop(1, head="Be kind."))
    assert found["lost_tokens"] == len(rendered) - len("<system>Be ") // 8 * 8


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_server_that_does_not_tokenize_is_said(tmp_path: Path, server: str) -> None:
    file = write(tmp_path, body(1), body(2, "Be brief."))

    outcome = run(file, "--json", "--base-url", server)

    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["breaks"][0]["lost_tokens"] is None
    assert "1 breaks could not be counted in tokens" in outcome.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "nonsense", "http://[bad"])
def test_no_server_there(tmp_path: Path, url: str) -> None:
    outcome = run(write(tmp_path, body(1)), "--base-url", url)

    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("error: ")


def test_recorded_cases_as_one_file_per_case(tmp_path: Path) -> None:
    cases = DATA / "guard_cases.jsonl"
    if not cases.exists():
        pytest.skip("guard_cases.jsonl is not there")
    for line in cases.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        outcome = run(write(tmp_path, *case["requests"]), "--json")

        assert outcome.exit_code == int(case["expect_break"]), case["name"]
        kinds = [b["kind"] for b in json.loads(outcome.stdout)["breaks"]]
        assert kinds == ([case["kind"]] if case["expect_break"] else [])
