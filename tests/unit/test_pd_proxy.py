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
USAGE = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
CHOICE = {"index": 0, "finish_reason": "tool_calls", "token_ids": [7, 8]}


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
                head = {"id": "1", "created": 0, "model": "m"}
                answer = {
                    **head,
                    "usage": USAGE,
                    "prompt_token_ids": [1, 2],
                    "choices": [{**CHOICE, "message": {"content": name, "tool_calls": [CALL]}}],
                    "kv_transfer_params": params if "kv_transfer_params" in body else None,
                }
                text = json.dumps(answer)
                if body.get("stream"):  # as vLLM 0.32 does, without a handle
                    chunk = {**head, "choices": [{"index": 0, "delta": {"content": name}}]}
                    text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
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

    def ask(
        self, conversation: str | None = None, route: str = "chat/completions", **fields: Any
    ) -> str:
        body = {"model": "m", "messages": [], **fields}
        if conversation:
            body["conversation_id"] = conversation
        url = f"{self.serving.url}/v1/{route}"
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


def test_a_conversations_stream_is_its_whole_answer_in_one_piece(proxied: Proxied) -> None:
    streamed = proxied.ask("a", stream=True, stream_options={"include_usage": True})
    *events, done, _ = streamed.split("\n\n")
    assert done == "data: [DONE]"
    whole, end, usage = (json.loads(event.removeprefix("data: ")) for event in events)
    assert whole["prompt_token_ids"] == [1, 2]
    delta = {"content": "decode", "tool_calls": [{**CALL, "index": 0}]}
    assert whole["choices"] == [{"index": 0, "delta": delta, "token_ids": [7, 8]}]
    assert end["choices"] == [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]
    assert usage["usage"] == USAGE
    assert {event["object"] for event in (whole, end, usage)} == {"chat.completion.chunk"}
    assert "stream" not in proxied.decode.got[0]
    assert "stream_options" not in proxied.decode.got[0]
    assert "usage" not in proxied.ask("a", stream=True)


def test_only_a_chat_has_a_conversation(proxied: Proxied) -> None:
    for _ in range(2):
        proxied.ask("a", route="completions", stream=True)
    assert proxied.given_back() == [None, None]
    assert all("conversation_id" not in body for body in proxied.prefill.got + proxied.decode.got)


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
