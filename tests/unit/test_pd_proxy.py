"""The example's conversation proxy: a handle is given back once, to its own conversation."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("pd_proxy", ROOT / "examples" / "pd_proxy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Serving:
    """An HTTP server in a thread."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Node:
    """A prefill or decode server that says what it got, and leaves a handle with a number."""

    def __init__(self, name: str) -> None:
        self.got: list[dict[str, Any]] = []
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                node.got.append(body)
                params = {"remote_block_ids": [len(node.got)], "from": name}
                answer = {
                    "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}},
                    "choices": [{"message": {"content": name}}],
                    "kv_transfer_params": params if "kv_transfer_params" in body else None,
                }
                text = json.dumps(answer)
                if body.get("stream"):
                    text = f'data: {{"choices": []}}\n\ndata: {text}\n\ndata: [DONE]\n\n'
                self.send_response(200)
                kind = "text/event-stream" if body.get("stream") else "application/json"
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.serving = Serving(Handler)


class Proxied:
    """The proxy in front of two such servers."""

    def __init__(self, *, ttl: float = 480, plain_to_decode: bool = False) -> None:
        module = load()
        self.prefill, self.decode = Node("prefill"), Node("decode")
        module.Proxy.prefill = self.prefill.serving.url
        module.Proxy.decode = self.decode.serving.url
        module.Proxy.handles = module.Handles(ttl)
        module.Proxy.plain_to_decode = plain_to_decode
        self.serving = Serving(module.Proxy)

    def ask(self, conversation: str | None = None, **fields: Any) -> str:
        body = {"model": "m", "messages": [], **fields}
        if conversation:
            body["conversation_id"] = conversation
        url = f"{self.serving.url}/v1/chat/completions"
        return httpx2.post(url, json=body, trust_env=False).text

    def given_back(self) -> list[Any]:
        """Which of the decode server's handles came with each request to the prefill server."""
        return [body["kv_transfer_params"].get("remote_block_ids") for body in self.prefill.got]

    def close(self) -> None:
        for serving in (self.serving, self.prefill.serving, self.decode.serving):
            serving.close()


@pytest.fixture
def proxied() -> Iterator[Proxied]:
    made = Proxied()
    yield made
    made.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_handle_goes_back_once_to_its_own_conversation(proxied: Proxied, stream: bool) -> None:
    for conversation in ("a", "b", None, "a", "a", "c"):
        assert "decode" in proxied.ask(conversation, stream=stream)
    assert proxied.given_back() == [None, None, None, [1], [4], None]
    assert all("conversation_id" not in body for body in proxied.prefill.got + proxied.decode.got)


def test_the_prefill_server_is_asked_for_one_token(proxied: Proxied) -> None:
    proxied.ask("a", stream=True, max_completion_tokens=9, stream_options={"include_usage": True})
    (first,), (second,) = proxied.prefill.got, proxied.decode.got
    assert first["max_tokens"] == 1
    assert first["stream"] is False
    assert "stream_options" not in first
    assert "max_completion_tokens" not in first
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert second["max_completion_tokens"] == 9
    assert second["kv_transfer_params"]["from"] == "prefill"


def test_an_expired_handle_is_not_given_back() -> None:
    proxied = Proxied(ttl=5.0)  # the margin takes all of it
    proxied.ask("a")
    proxied.ask("a")
    assert proxied.given_back() == [None, None]
    proxied.close()


def test_plain_requests_may_go_straight_to_the_decode_server() -> None:
    proxied = Proxied(plain_to_decode=True)
    proxied.ask(None)
    proxied.ask("a")
    assert len(proxied.prefill.got) == 1
    assert "kv_transfer_params" not in proxied.decode.got[0]
    proxied.close()
