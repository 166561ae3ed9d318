"""Reads the server's stream of events into one answer, and leaves nothing of it behind.

The openai client's own stream leaves suspended generators when it is not read to its end; each of
them needs turns of the event loop that a loop which is ending does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

_MAX_CHARACTERS = 20_000
"""Characters after which an answer is cut off, whatever the server still has to say."""

_MAX_LINE_BYTES = 1 << 20
_END_S = 1.0
"""Seconds that the server has to end its answer after the last event, so that the connection can be
used again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a branch's request brought back.

    Attributes:
        text: Everything generated, as text.
        finish_reason: `stop`, `length`, `tool_calls`, …; None when we closed the stream.
        stop_reason: The stop string that ended it, when one did (a vLLM field).
        tool_calls: Whether the model called a tool.
        prompt_tokens: Tokens of the prompt, as the server counted them.
        cached: Prompt tokens served from the prefix cache; None when the server does not say.
        generated: Tokens generated.
        ttft_ms: Milliseconds from sending to the first generated token.
        total_ms: Milliseconds from sending to the end of the stream.
    """

    text: str
    finish_reason: str | None
    stop_reason: str | None
    tool_calls: bool
    prompt_tokens: int | None
    cached: int | None
    generated: int | None
    ttft_ms: float | None
    total_ms: float


def never(_piece: str) -> bool:
    """The `until` that lets an answer run to its end."""
    return False


async def collect(
    response: httpx2.Response,
    start: float,
    until: Callable[[str], bool],
    on_first_token: Callable[[], None],
) -> Answer:
    """Read a streamed chat completion or completion.

    Args:
        response: The open response; closed by the caller.
        start: When the request was sent, as `time.perf_counter()` counts.
        until: Fed with each piece of text; when it returns True nothing more is read.
        on_first_token: Called once, at the first generated token.

    Raises:
        openai.APIResponseValidationError: This is no stream of chunks, or it holds no token.
        openai.APIError: The server reports an error in mid-stream.
        httpx2.HTTPError: The connection broke.
    """
    text = ""
    ttft: float | None = None
    finish: str | None = None
    stop: Any = None
    tool_calls = False
    usage: dict[str, Any] = {}
    try:
        async with contextlib.aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                usage = chunk.get("usage") or usage
                piece = ""
                for choice in chunk.get("choices") or ():
                    delta = choice.get("delta") or choice  # a completion's choice holds its text
                    piece += delta.get("content") or delta.get("text") or ""
                    tool_calls |= bool(delta.get("tool_calls"))
                    finish = choice.get("finish_reason") or finish
                    stop = choice.get("stop_reason") or stop
                if ttft is None and (piece or tool_calls or finish):
                    ttft = (time.perf_counter() - start) * 1e3
                    on_first_token()
                text += piece
                if (piece and until(piece)) or len(text) > _MAX_CHARACTERS:
                    break
    except (ValueError, AttributeError, TypeError) as error:  # no UTF-8, no JSON, no chunk
        msg = f"the answer cannot be read: {error}"
        raise openai.APIResponseValidationError(response, None, message=msg) from error
    if not (text or tool_calls or finish):
        msg = "the answer ended before its first token"
        raise openai.APIResponseValidationError(response, None, message=msg)
    return Answer(
        text=text,
        finish_reason=finish,
        stop_reason=stop if isinstance(stop, str) else None,
        tool_calls=tool_calls,
        prompt_tokens=usage.get("prompt_tokens"),
        cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        generated=usage.get("completion_tokens"),
        ttft_ms=ttft,
        total_ms=(time.perf_counter() - start) * 1e3,
    )


async def _chunks(response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of an event stream, up to `[DONE]`."""
    rest = b""
    async with contextlib.aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    await _read_end(pieces)
                    return
                yield _chunk(data, response)
            if len(rest) > _MAX_LINE_BYTES:
                msg = f"a line of more than {_MAX_LINE_BYTES} bytes"
                raise ValueError(msg)


def _chunk(data: bytes, response: httpx2.Response) -> dict[str, Any]:
    chunk: dict[str, Any] = json.loads(data)
    error = chunk.get("error")
    if error:
        words = error.get("message") if isinstance(error, dict) else error
        raise openai.APIError(str(words), request=response.request, body=error)
    return chunk


async def _read_end(pieces: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            async for _ in pieces:
                pass
