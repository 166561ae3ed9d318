"""A conversation proxy in front of one prefill and one decode server: the least that works.

It sends each request to the prefill server for one token and then to the decode server, which reads
the blocks. What the decode server answers beside its text, the handle of its own blocks, is kept
under the request's `conversation_id` and given to the prefill server with the next request of the
same conversation, which then reads back what the decode server has computed.

vLLM 0.32 tells the handle with a whole answer only, never in a stream. So the answers of a
conversation are fetched whole, and one that was to be streamed is sent on as one piece.

The handle is used once, and nothing here compares tokens: whoever sends a `conversation_id` must
know that the new prompt begins with the old one and its answer. langgraph-shadow does, for the
orchestrator; its branches carry none.

    python examples/pd_proxy.py --prefill http://127.0.0.1:8001 --decode http://127.0.0.1:8002

One line of JSON per request goes to standard output. The standard library is enough.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
GENERATES = (CHAT, "/v1/completions")
NO_BLOCKS = ("remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host")
EXPIRY_MARGIN_S = 5.0


class Handles:
    """The decode server's handles by conversation, each used once and until it expires."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def take(self, conversation: str | None) -> dict[str, Any] | None:
        with self._lock:
            at, handle = self._kept.pop(conversation or "", (0.0, None))
        return handle if handle and time.monotonic() - at < self._ttl - EXPIRY_MARGIN_S else None

    def keep(self, conversation: str | None, handle: dict[str, Any] | None) -> None:
        if conversation and handle:
            with self._lock:
                self._kept[conversation] = (time.monotonic(), handle)


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    prefill = decode = ""
    plain_to_decode = False
    handles = Handles(480)

    def do_GET(self) -> None:
        self._relay(self._send(self.prefill, None))

    def do_POST(self) -> None:
        payload = self.rfile.read(int(self.headers["content-length"]))
        if self.path not in GENERATES:
            self._relay(self._send(self.prefill, payload))
            return
        body = json.loads(payload)
        named = body.pop("conversation_id", None)
        conversation = named if self.path == CHAT else None
        if conversation is None and self.plain_to_decode:
            self._relay(self._send(self.decode, json.dumps(body).encode()))
            return
        self._both(body, conversation)

    def _both(self, body: dict[str, Any], conversation: str | None) -> None:
        handle = self.handles.take(conversation)
        wanted = {"do_remote_decode": True, "do_remote_prefill": False}
        params = {**wanted, **(handle or dict.fromkeys(NO_BLOCKS))}
        one = {"stream": False, "max_tokens": 1, "kv_transfer_params": params}
        left_out = ("stream_options", "max_completion_tokens", "min_tokens")
        first = {k: v for k, v in body.items() if k not in left_out} | one
        began = time.monotonic()
        answer = self._send(self.prefill, json.dumps(first).encode())
        content = answer.read()
        if answer.status != 200:
            self._answer(answer.status, content)
            return
        computed = json.loads(content)
        details = computed["usage"].get("prompt_tokens_details") or {}
        prefilled = time.monotonic()
        second = {**body, "kv_transfer_params": computed["kv_transfer_params"]}
        if conversation is not None:
            second = {k: v for k, v in second.items() if k not in ("stream", "stream_options")}
        answer = self._send(self.decode, json.dumps(second).encode())
        whole = answer.read() if conversation is not None else b""
        said = json.loads(whole) if whole and answer.status == 200 else {}
        report = {
            "conversation": conversation,
            "handle": handle is not None,
            "handle_tokens": (handle or {}).get("remote_num_tokens"),
            "prompt_tokens": computed["usage"]["prompt_tokens"],
            "prefill_cached": details.get("cached_tokens"),
            "prefill_ms": round((prefilled - began) * 1e3, 1),
            # with --enable-per-request-metrics on the decode server
            "decode_first_token_ms": (said.get("metrics") or {}).get("time_to_first_token_ms"),
        }
        print(json.dumps(report), flush=True)
        if conversation is None:
            self._relay(answer)
            return
        # before the client can ask again
        self.handles.keep(conversation, said.get("kv_transfer_params"))
        if said and body.get("stream"):
            self._stream(as_chunks(said, body.get("stream_options") or {}))
        else:
            self._answer(answer.status, whole)

    def _send(self, server: str, payload: bytes | None) -> http.client.HTTPResponse:
        there = http.client.HTTPConnection(urlsplit(server).netloc)
        left_out = ("host", "content-length", "connection", "accept-encoding")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
        there.request(self.command, self.path, payload, headers)
        return there.getresponse()

    def _relay(self, answer: http.client.HTTPResponse) -> None:
        """Pass an answer on as it comes."""
        kind = answer.headers["content-type"]
        if "event-stream" in (kind or ""):
            self._stream(answer)
        else:
            self._answer(answer.status, answer.read(), kind)

    def _stream(self, lines: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for line in lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, content: bytes, kind: str | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", kind or "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def as_chunks(answer: dict[str, Any], options: dict[str, Any]) -> Iterator[bytes]:
    """A whole chat answer as the events of a stream: all of it at once, its end, its usage."""
    head = {key: answer[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    pieces, ends = [], []
    for choice in answer["choices"]:
        delta = {key: value for key, value in choice["message"].items() if value}
        for number, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = number
        place = {"index": choice["index"]}
        pieces.append({**place, "delta": delta, "token_ids": choice.get("token_ids")})
        ends.append({**place, "delta": {}, "finish_reason": choice["finish_reason"]})
    chunks = [{"choices": pieces, "prompt_token_ids": answer.get("prompt_token_ids")}]
    chunks.append({"choices": ends})
    if options.get("include_usage"):
        chunks.append({"choices": [], "usage": answer["usage"]})
    for chunk in chunks:
        yield b"data: %s\n\n" % json.dumps({**head, **chunk}).encode()
    yield b"data: [DONE]\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--ttl", type=float, default=480, help="decoder_kv_blocks_ttl, seconds")
    parser.add_argument(
        "--plain-to-decode",
        action="store_true",
        help="send requests without a conversation straight to the decode server, where the "
        "orchestrator's blocks are; there they do not stay pinned",
    )
    args = parser.parse_args()
    Proxy.prefill, Proxy.decode = args.prefill, args.decode
    Proxy.plain_to_decode, Proxy.handles = args.plain_to_decode, Handles(args.ttl)
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Proxy)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
