"""As much of a vLLM server as the doctor asks for, set up well or badly.

A token is a character of the rendered prompt; the cache follows the block rule.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langgraph_shadow.alignment.blocks import common_prefix

BLOCK = 16


@dataclass
class Lookalike:
    """A server's set-up, and what it has cached."""

    models: tuple[str, ...] = ("m",)
    caching: bool = True
    reporting: bool = True
    keeps_tools: bool = True
    renders_tools: bool = True
    tokenizes: bool = True
    has_metrics: bool = True
    calls_tools: bool = True
    takes_priority: bool = True
    policy: str | None = None
    retained: int | None = None
    forgets_reasoning: bool = False
    api_key: str | None = None
    chats: bool = True
    cached: list[str] = field(default_factory=list)
    hits: int = 0
    requests: int = 0
    url: str = ""

    def get(self, path: str) -> tuple[int, str]:
        if path == "/v1/models":
            listed = [{"id": name, "max_model_len": 8192} for name in self.models]
            return 200, json.dumps({"data": listed})
        if path == "/version":
            return 200, '{"version": "0.32.0"}'
        if path == "/metrics" and self.has_metrics:
            return 200, (
                f'vllm:cache_config_info{{block_size="{BLOCK}",enable_prefix_caching='
                f'"{self.caching}",sliding_window="{self.retained}"}} 1.0\n'
                f"vllm:prefix_cache_hits_total {self.hits}\n"
            )
        if path.startswith("/server_info") and self.policy:
            return 200, json.dumps({"vllm_config": {"scheduler_config": {"policy": self.policy}}})
        return 404, '{"detail": "Not Found"}'

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        if path == "/tokenize" and self.tokenizes:
            text = body["prompt"] if "prompt" in body else self.render(body)
            return 200, json.dumps({"tokens": [ord(c) for c in text]})
        if path == "/detokenize" and self.tokenizes:
            return 200, json.dumps({"prompt": "".join(map(chr, body["tokens"]))})
        if path == "/v1/chat/completions" and self.chats:
            refusal = self.refusal(body)
            if refusal:
                return 400, json.dumps({"error": {"message": refusal}})
            if body.get("tool_choice") == "none" and not self.keeps_tools:
                body = {k: v for k, v in body.items() if k != "tools"}
            return 200, json.dumps({"usage": self.compute(self.render(body))})
        if path == "/v1/completions" and self.chats:
            return 200, json.dumps({"usage": self.compute("".join(map(chr, body["prompt"])))})
        return 404, '{"detail": "Not Found"}'

    def refusal(self, body: dict[str, Any]) -> str:
        if body.get("tool_choice") == "auto" and not self.calls_tools:
            return '"auto" tool choice requires --enable-auto-tool-choice to be set'
        if body.get("priority") and not self.takes_priority:
            return "Got priority 1 but priority scheduling is off"
        return ""

    def render(self, body: dict[str, Any]) -> str:
        text = json.dumps(body.get("tools") or []) if self.renders_tools else ""
        messages = body["messages"]
        last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
        for i, message in enumerate(messages):
            reasoning = message.get("reasoning") or ""
            keep = (body.get("chat_template_kwargs") or {}).get("preserve_thinking")
            if self.forgets_reasoning and i < last_user and not keep:
                reasoning = ""
            calls = json.dumps(message.get("tool_calls") or "")
            text += f"<{message['role']}>{reasoning}{message.get('content')}{calls}</>"
        return text + "<assistant>" * body.get("add_generation_prompt", True)

    def compute(self, prompt: str) -> dict[str, Any]:
        self.requests += 1
        common = max((common_prefix(prompt, c) for c in self.cached), default=0)
        hit = min(common // BLOCK, (len(prompt) - 1) // BLOCK) * BLOCK if self.caching else 0
        if self.retained is not None:
            hit = min(hit, self.retained)
        self.hits += hit
        self.cached.append(prompt)
        usage: dict[str, Any] = {"prompt_tokens": len(prompt)}
        if self.reporting:
            usage["prompt_tokens_details"] = {"cached_tokens": hit}
        return usage


@contextmanager
def lookalike(**setup: Any) -> Iterator[Lookalike]:
    """Serve one on loopback."""
    server = Lookalike(**setup)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.answer(*server.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(*server.post(self.path, body))

        def answer(self, status: int, text: str) -> None:
            if server.api_key and self.headers["Authorization"] != f"Bearer {server.api_key}":
                status, text = 401, '{"error": "Unauthorized"}'
            payload = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *arguments: Any) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
