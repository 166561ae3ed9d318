"""The ways in which a server lets a branch down."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from tests.faults.server import (
    Reply,
    Script,
    chunk,
    frame,
    metrics_page,
)

LONG = 10_000
"""Tokens of an answer that should have been a sentence."""


def status(code: int, message: str = "no") -> Script:
    """An error status with vLLM's error body."""

    async def script(reply: Reply) -> None:
        error = {"message": message, "type": "BadRequestError", "param": None, "code": code}
        await reply.json({"error": error}, status=code)

    return script


def page(payload: bytes, *, code: int = 200, kind: str = "text/html") -> Script:
    """A whole answer of any kind."""

    async def script(reply: Reply) -> None:
        await reply.raw(payload, status=code, kind=kind)

    return script


def events(*values: Any) -> Script:
    """A stream of events that ends as it should."""

    async def script(reply: Reply) -> None:
        await reply.start()
        for value in (*values, "[DONE]"):
            await reply.event(value)
        await reply.end()

    return script


def stream(*payloads: bytes) -> Script:
    """A stream of raw bytes that ends as it should."""

    async def script(reply: Reply) -> None:
        await reply.start()
        for payload in payloads:
            await reply.send(payload)
        await reply.end()

    return script


def answer(text: str, *, finish: str = "stop") -> Script:
    """A whole answer with usage, word by word."""

    async def script(reply: Reply) -> None:
        prompt = reply.server.prompt(reply.path, reply.body)
        await reply.start()
        pieces = [chunk(content=piece) for piece in _pieces(text)]
        usage = {**frame(), "choices": [], "usage": reply.server.usage(prompt, branch=True)}
        for value in (*pieces, chunk(finish=finish), usage, "[DONE]"):
            await reply.event(value)
        await reply.end()

    return script


def _pieces(text: str) -> list[str]:
    """The text in pieces of ten words, as a server with a stream interval sends it."""
    words = text.split(" ") if text else []
    return [" ".join(words[i : i + 10]) + " " for i in range(0, len(words), 10)]


async def reset_at_once(reply: Reply) -> None:
    """The connection is reset instead of an answer."""
    reply.reset()


async def reset_in_stream(reply: Reply) -> None:
    """The connection is reset after the first token."""
    await reply.start()
    spliced = {**frame(), "choices": [{"index": 0, "text": "The"}]}
    await reply.event(spliced if reply.path == "/v1/completions" else chunk(content="The"))
    reply.reset()


async def cut_in_stream(reply: Reply) -> None:
    """The connection is closed after the first token, without the end of the chunks."""
    await reply.start()
    await reply.event(chunk(content="The"))
    reply.keep_alive = False


async def slow_headers(reply: Reply) -> None:
    """No answer at all."""
    await reply.hold()


async def stalled(reply: Reply) -> None:
    """One token, and then nothing."""
    await reply.start()
    await reply.event(chunk(content="The"))
    await reply.hold()


async def endless(reply: Reply) -> None:
    """Tokens without an end, whatever the client asked for."""
    await reply.start()
    for number in itertools.count():
        await reply.event(chunk(content=f"word{number} " * 10))


async def endless_comments(reply: Reply) -> None:
    """Keep-alive comments, and never a token."""
    await reply.start()
    while True:
        await reply.send(b": still here\n\n")
        await asyncio.sleep(0.001)


async def endless_line(reply: Reply) -> None:
    """One event that never ends."""
    await reply.start()
    await reply.send(b"data: ")
    while True:
        await reply.send(b"x" * 256)
        await asyncio.sleep(0.001)


async def not_http(reply: Reply) -> None:
    """Something that speaks another protocol."""
    reply.writer.write(b"220 mail ready\r\n\r\n")
    reply.keep_alive = False
    await reply.writer.drain()


async def tool_call(reply: Reply) -> None:
    """A tool call although none was allowed."""
    call = {"index": 0, "id": "c", "type": "function"}
    function = {"name": "search", "arguments": json.dumps({"topic": "more"})}
    await events(chunk(tool_calls=[{**call, "function": function}]), chunk(finish="tool_calls"))(
        reply
    )


def from_the_second(good: Script, bad: Script) -> Script:
    """The first request is served well, every later one is not."""
    numbers = itertools.count()

    async def script(reply: Reply) -> None:
        await (bad if next(numbers) else good)(reply)

    return script


BAD_UTF8 = b'data: {"choices": [{"index": 0, "delta": {"content": "\xff\xfe"}}]}\n\n'
HTML = b"<!doctype html><html><body><h1>502 Bad Gateway</h1><script>x()</script></body></html>"
TOO_LONG = (
    "This model's maximum context length is 64 tokens. However, your request has 900 input tokens."
)
WRONG_BLOCKS = page(metrics_page(64), kind="text/plain")
