"""As much of LangSmith as an experiment needs, on this machine: it keeps what it is sent.

For runs without an API key. `local_langsmith()` returns a `langsmith.Client` and what it recorded.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from langsmith import Client

Item = dict[str, Any]
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
TENANT = str(uuid4())


@dataclass
class Recorded:
    """What was sent, in order.

    Attributes:
        datasets: Datasets, by id.
        examples: Examples of all datasets.
        experiments: Experiments (LangSmith calls them sessions), by id.
        runs: Runs, by id; what was sent later is merged in.
        feedback: Scores of runs and of experiments.
    """

    datasets: dict[str, Item] = field(default_factory=dict)
    examples: list[Item] = field(default_factory=list)
    experiments: dict[str, Item] = field(default_factory=dict)
    runs: dict[str, Item] = field(default_factory=dict)
    feedback: list[Item] = field(default_factory=list)

    def get(self, path: list[str], query: dict[str, list[str]]) -> Any:
        """Answer a GET request."""
        match path:
            case ["info"]:
                return INFO
            case ["datasets" | "sessions" as kind]:
                known = self.datasets if kind == "datasets" else self.experiments
                names = query.get("name")
                return [item for item in known.values() if not names or item["name"] in names]
            case ["datasets", key]:
                return self.datasets.get(key)
            case ["sessions", key]:
                return self.experiments.get(key)
            case ["examples"]:
                first = int(query.get("offset", ["0"])[0])
                return [e for e in self.examples if e["dataset_id"] in query["dataset"]][first:]
            case ["runs", key]:
                return self.runs.get(key)
        return None

    def post(self, path: list[str], body: Any) -> Any:
        """Answer a POST or PATCH request."""
        match path:
            case ["datasets"]:
                return self._keep(self.datasets, {**body, "created_at": "2000-01-01T00:00:00Z"})
            case ["sessions"]:
                return self._keep(self.experiments, {**body, "tenant_id": TENANT})
            case ["sessions", key]:
                self.experiments[key].update(_set(body))
                return self.experiments[key]
            case ["examples", "bulk"]:
                new = [{**example, "id": str(uuid4())} for example in body]
                self.examples += new
                return new
            case ["runs", "batch"]:
                for run in [*(body.get("post") or ()), *(body.get("patch") or ())]:
                    self.runs.setdefault(run["id"], {}).update(_set(run))
            case ["runs"]:
                self.runs[body["id"]] = body
            case ["runs", key]:
                self.runs.setdefault(key, {}).update(_set(body))
            case ["feedback"]:
                self.feedback.append(body)
        return {}

    def _keep(self, known: dict[str, Item], item: Item) -> Item:
        item["id"] = str(item.get("id") or uuid4())
        known[item["id"]] = item
        return item


def _set(item: Item) -> Item:
    """Without the fields that say nothing."""
    return {key: value for key, value in item.items() if value is not None}


def local_langsmith() -> tuple[Client, Recorded]:
    """Start the endpoint in a thread that ends with the process."""
    recorded, lock = Recorded(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            with lock:
                answer = recorded.get(url.path.strip("/").split("/"), parse_qs(url.query))
            self._answer(answer)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = urlsplit(self.path).path.strip("/").split("/")
            with lock:
                answer = recorded.post(path, json.loads(body))
            self._answer(answer)

        def do_PATCH(self) -> None:
            self.do_POST()

        def _answer(self, answer: Any) -> None:
            payload = json.dumps(answer).encode()
            self.send_response(200 if answer is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Client(api_url=f"http://127.0.0.1:{server.server_port}", api_key="local"), recorded
