"""A router in a thread: hashes a request as vllm-router's `consistent_hash` does, and keeps it."""

from __future__ import annotations

import http.client
import json
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KEYS = (  # facts/vllm.md "Beyond one server"
    "x-session-id",
    "x-user-id",
    "x-tenant-id",
    "x-request-id",
    "x-correlation-id",
    "x-trace-id",
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that came by."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    worker: int

    @property
    def generates(self) -> bool:
        return self.path.endswith("/completions")


class HashRouter:
    """Spreads requests over workers by the first key that a request carries.

    Attributes:
        diagnostics: What it says of its scheduling; empty for a router without any.
    """

    diagnostics = b""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self.requests: list[Sent] = []
        router = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if router.diagnostics and self.path == "/scheduling/diagnostics":
                    self._answer(200, "application/json", router.diagnostics)
                    return
                if self.path in ("/health", "/v1/models"):
                    known = {"object": "list", "data": [{"id": "m", "object": "model"}]}
                    self._answer(200, "application/json", json.dumps(known).encode())
                    return
                self._forward(b"")

            def do_POST(self) -> None:
                self._forward(self.rfile.read(int(self.headers["content-length"])))

            def _forward(self, payload: bytes) -> None:
                headers = {k.lower(): v for k, v in self.headers.items()}
                body = json.loads(payload) if payload else {}
                worker = router.worker(headers)
                router.requests.append(Sent(self.path, headers, body, worker))
                there = http.client.HTTPConnection("127.0.0.1", router.ports[worker])
                kept = {k: v for k, v in headers.items() if k in ("content-type", "authorization")}
                there.request(self.command, self.path, payload or None, kept)
                answer = there.getresponse()
                content = answer.read()
                there.close()
                kind = answer.headers["content-type"] or "text/plain"
                self._answer(answer.status, kind, content)

            def _answer(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def worker(self, headers: dict[str, str]) -> int:
        key = next((headers[k] for k in KEYS if k in headers), "")
        return zlib.crc32(key.encode()) % len(self.ports)

    def generated(self) -> list[Sent]:
        """The requests that generate."""
        return [r for r in self.requests if r.generates]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
