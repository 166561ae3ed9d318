"""An HTTP server that speaks just enough of vLLM and misbehaves on purpose.

The orchestrator is served well, at most late. What a branch gets is a script's business: it writes
whatever bytes it likes. One character is one token, so every prompt can be checked by eye.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from langgraph_shadow.alignment.blocks import common_prefix, predicted_cached

MODEL = "m"
BLOCK_SIZE = 16
INSTRUCTION = "Say in one sentence what the tool found, or reply SKIP."
SENTENCE = "The glaciers lost a third of their ice."

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


@dataclass(eq=False, slots=True)
class Reply:
    """One request and the way to answer it."""

    server: FaultServer
    path: str
    body: Mapping[str, Any]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keep_alive: bool = True

    async def raw(self, payload: bytes, *, status: int = 200, kind: str = "text/html") -> None:
        """A whole answer with its length."""
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(payload)}\r\n\r\n"
        )
        self.writer.write(head.encode() + payload)
        await self.writer.drain()

    async def json(self, value: object, *, status: int = 200) -> None:
        """A whole JSON answer."""
        await self.raw(json.dumps(value).encode(), status=status, kind="application/json")

    async def start(self, *, kind: str = "text/event-stream") -> None:
        """The head of an answer in chunks."""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        self.writer.write(head.encode())
        await self.writer.drain()

    async def send(self, payload: bytes) -> None:
        """One chunk."""
        self.writer.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        await self.writer.drain()

    async def event(self, value: object) -> None:
        """One server-sent event."""
        await self.send(
            f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        )

    async def end(self) -> None:
        """The end of the chunks."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()
        self.keep_alive = False

    async def hold(self) -> None:
        """Say nothing more until the client has gone."""
        self.keep_alive = False
        while await self.reader.read(65536):
            pass

    async def wait_for(self, event: threading.Event) -> None:
        """Wait for the test, which runs in another thread."""
        await asyncio.to_thread(event.wait, 10)


Script = Callable[[Reply], Awaitable[None]]


async def serve_chat(reply: Reply) -> None:
    """What vLLM answers: tool calls for the orchestrator, one sentence for a branch."""
    body, branch = reply.body, is_branch(reply.body)
    prompt = reply.server.prompt(reply.path, body)
    usage = reply.server.usage(prompt, branch=branch)
    calls = [] if branch or body.get("tool_choice") == "none" else _calls(body)
    text = SENTENCE if branch else "" if calls else "Glaciers shrink."
    finish = "tool_calls" if calls else "stop"
    if not body.get("stream"):
        message = {"role": "assistant", "content": text or None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        await reply.json(
            {**frame(), "object": "chat.completion", "choices": [choice], "usage": usage}
        )
        return
    await reply.start()
    for piece in _pieces(text):
        await reply.event(chunk(content=piece))
    if calls:
        await reply.event(chunk(tool_calls=[{"index": i, **c} for i, c in enumerate(calls)]))
    await reply.event(chunk(finish=finish))
    await reply.event({**frame(), "choices": [], "usage": usage})
    await reply.event("[DONE]")
    await reply.end()


async def serve_completion(reply: Reply) -> None:
    """A spliced branch: its prompt comes as token ids."""
    prompt = reply.server.prompt(reply.path, reply.body)
    usage = reply.server.usage(prompt, branch=True)
    await reply.start()
    choice = {"index": 0, "text": SENTENCE, "finish_reason": "stop"}
    await reply.event({**frame(), "object": "text_completion", "choices": [choice]})
    await reply.event({**frame(), "object": "text_completion", "choices": [], "usage": usage})
    await reply.event("[DONE]")
    await reply.end()


async def serve_tokenize(reply: Reply) -> None:
    """Tokens of a chat or of a bare text."""
    ids = [ord(c) for c in reply.server.prompt(reply.path, reply.body)]
    await reply.json({"count": len(ids), "tokens": ids, "max_model_len": 100_000})


async def serve_detokenize(reply: Reply) -> None:
    """The text of some tokens."""
    await reply.json({"prompt": "".join(map(chr, reply.body["tokens"]))})


async def serve_metrics(reply: Reply) -> None:
    """The one line that matters here."""
    await reply.raw(metrics_page(BLOCK_SIZE), kind="text/plain")


def metrics_page(block_size: int) -> bytes:
    """A `/metrics` page that names a block size."""
    labels = f'block_size="{block_size}",enable_prefix_caching="True"'
    return (
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
        "# TYPE vllm:cache_config_info gauge\n"
        f"vllm:cache_config_info{{{labels}}} 1.0\n"
    ).encode()


def frame() -> dict[str, Any]:
    """What every chunk begins with."""
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}


def chunk(*, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chat chunk."""
    return {**frame(), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def is_branch(body: Mapping[str, Any]) -> bool:
    """Whether a chat request is a branch's: no tools to choose, and the instruction in it."""
    return body.get("tool_choice") == "none" and INSTRUCTION in json.dumps(body["messages"])


def _calls(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    turn = len(body["messages"])
    function = {"name": "search", "arguments": json.dumps({"topic": f"ice {turn}"})}
    return [{"id": f"call-{turn}", "type": "function", "function": function}]


def _pieces(text: str) -> list[str]:
    return [f"{word} " for word in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []


def render(body: Mapping[str, Any]) -> str:
    """The chat template: a user turn keeps everything before it."""
    text = f"<tools>{json.dumps(body.get('tools') or [])}</tools>"
    for message in body["messages"]:
        calls = [c["function"] for c in message.get("tool_calls") or ()]
        text += f"<{message['role']}>{message.get('content') or ''}{calls or ''}</>"
    return text + ("<assistant>" if body.get("add_generation_prompt", True) else "")


@dataclass(eq=False)
class FaultServer:
    """The server, in a thread of its own; usable as a `with` block, and restartable.

    Attributes:
        orchestrator: What the orchestrator's requests get.
        branch: What a branch's chat requests get.
        completion: What `/v1/completions` gets.
        tokenize: What `/tokenize` gets.
        metrics: What `/metrics` gets.
        arrived: Set when a branch's request has come.
        go: For scripts that wait for the test.
        evicting: Whether the cache forgets everything before each branch.
        requests: Requests seen, by path.
    """

    orchestrator: Script = serve_chat
    branch: Script = serve_chat
    completion: Script = serve_completion
    tokenize: Script = serve_tokenize
    metrics: Script = serve_metrics
    template: Callable[[Mapping[str, Any]], str] = render
    port: int = 0
    evicting: bool = False
    arrived: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    requests: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen: deque[str] = deque(maxlen=32)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def start(self) -> None:
        """Listen, on the same port as before."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        """Stop listening, cut every connection and lose the cache, as a crash would."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    def restart(self) -> None:
        """Stop and start again."""
        self.stop()
        self.start()

    def prompt(self, path: str, body: Mapping[str, Any]) -> str:
        """The prompt that a request's tokens are counted on."""
        if "messages" in body:
            return self.template(body)
        text = body["prompt"]
        return text if isinstance(text, str) else "".join(map(chr, text))

    def usage(self, prompt: str, *, branch: bool) -> dict[str, Any]:
        """Usage of a prompt that is now in the cache."""
        if branch and self.evicting:
            self._seen.clear()
        shared = max((common_prefix(prompt, held) for held in self._seen), default=0)
        self._seen.append(prompt)
        cached = predicted_cached(shared, len(prompt), BLOCK_SIZE)
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": 8,
            "total_tokens": len(prompt) + 8,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    async def _start(self) -> None:
        self._listener = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, backlog=512
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._seen.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._request(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(content) if content else {}
        self.requests[path] = self.requests.get(path, 0) + 1
        reply = Reply(self, path, body, reader, writer)
        await self._script(path, body)(reply)
        return reply.keep_alive

    def _script(self, path: str, body: Mapping[str, Any]) -> Script:
        others = {
            "/tokenize": self.tokenize,
            "/detokenize": serve_detokenize,
            "/metrics": self.metrics,
        }
        if path in others:
            return others[path]
        branch = path == "/v1/completions" or is_branch(body)
        if branch:
            self.arrived.set()
            return self.completion if path == "/v1/completions" else self.branch
        return self.orchestrator
