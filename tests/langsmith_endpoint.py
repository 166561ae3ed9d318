"""A LangSmith endpoint on this machine that keeps the runs it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langsmith import Client

INFO = {
    "version": "0.0.0",
    "batch_ingest_config": {
        "use_multipart_endpoint": False,
        "size_limit": 100,
        "size_limit_bytes": 20_000_000,
        "scale_up_nthreads_limit": 1,
        "scale_up_qsize_trigger": 1000,
        "scale_down_nempty_trigger": 4,
    },
}


class LangSmithEndpoint:
    """What was posted, by run id; patches are merged in."""

    def __init__(self) -> None:
        self.merged: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()
        self.client: Client
        self.held: list[Client] = []

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Every run that has reached the endpoint, in the order of their starts."""
        self.client.flush(timeout=30)
        with self.lock:
            return sorted(self.merged.values(), key=lambda r: r["dotted_order"])

    @property
    def branches(self) -> list[dict[str, Any]]:
        return [r for r in self.runs if r["name"].startswith("shadow:")]

    def take(self, body: dict[str, Any]) -> None:
        with self.lock:
            for run in [*body.get("post", ()), *body.get("patch", ())]:
                known = self.merged.setdefault(run["id"], {})
                known.update({k: v for k, v in run.items() if v is not None})

    def tree(self, trace_id: str) -> list[list[str]]:
        """A trace as the names from its root to each of its runs, sorted."""
        runs = {r["id"]: r for r in self.runs if r["trace_id"] == trace_id}

        def path(run: dict[str, Any]) -> list[str]:
            parent = run.get("parent_run_id")
            return [*(path(runs[parent]) if parent else []), run["name"]]

        return sorted(path(run) for run in runs.values())


@contextmanager
def langsmith_endpoint() -> Iterator[LangSmithEndpoint]:
    endpoint = LangSmithEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, INFO)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("/runs/batch"):
                endpoint.take(json.loads(body))
            self.answer(202, {})

        def answer(self, status: int, body: dict[str, Any]) -> None:
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *arguments: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint.client = Client(api_url=f"http://127.0.0.1:{server.server_port}", api_key="x")
    # a client counts its references, and stops its thread where it finds too few
    endpoint.held = [endpoint.client] * 3
    assert endpoint.client.info is not None  # else it asks for it when the server is gone
    try:
        yield endpoint
    finally:
        endpoint.client.flush(timeout=30)
        endpoint.client.cleanup()
        server.shutdown()
        server.server_close()
        thread.join()
