"""What a server does, measured on a few requests of one token each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langgraph_shadow.alignment.blocks import predicted_cached
from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Prompt, common
from langgraph_shadow.alignment.survey import INSTRUCTION, Scenario, trunk
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import Trunk

if TYPE_CHECKING:
    from langgraph_shadow.alignment.render import Renderer
    from langgraph_shadow.server.client import Reply, ServerClient
    from langgraph_shadow.server.metrics import ServerMetrics
    from langgraph_shadow.server.served import ServedModel

_BLOCKS = 4
"""Whole blocks that a probe's prompt should have at least, so that a short hit is seen as short."""
_TOKENS = 600
_PASSAGE = "The passage says what is known about it, and where that was measured. "
_PASSAGE_TOKENS = 14
"""Roughly, for when nothing can be counted."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one request cost.

    Attributes:
        reply: The server's answer.
        prompt: Tokens of the prompt; None when the request was refused.
        cached: Tokens of it that came from the cache; None when the server does not report them.
    """

    reply: Reply
    prompt: int | None
    cached: int | None

    @classmethod
    def of(cls, reply: Reply) -> Usage:
        """Read a reply's usage."""
        usage = reply.body.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        return cls(reply, usage.get("prompt_tokens"), details.get("cached_tokens"))


async def probe_trunk(
    renderer: Renderer | None,
    model: ServedModel,
    *,
    metrics: ServerMetrics | None,
    tools: bool = True,
    parallel: bool = True,
) -> Trunk:
    """A trunk that no cache holds yet, several blocks long where the server's limit allows it.

    Args:
        renderer: Counts its tokens; without one they are guessed.
        model: The served model.
        metrics: For the block size.
        tools: Whether it is a tool loop, or a plain question.
        parallel: Whether the template takes two calls at once.
    """
    size = (metrics.block_size if metrics else None) or 0
    wanted = max(_TOKENS, _BLOCKS * size + size // 2)
    if model.max_model_len is not None:
        wanted = min(wanted, model.max_model_len - _TOKENS // 2)
    line = trunk(Scenario(turns=1, reasoning=False, parallel=parallel), model=model.name)
    if not tools:
        line = Trunk.build(key=line.key, model=line.model, messages=line.messages[:2])
    nonce = uuid4().hex
    if renderer is None:
        return _padded(line, nonce, wanted // _PASSAGE_TOKENS)
    bare = await _count(renderer, _padded(line, nonce, 0))
    each = max(1, await _count(renderer, _padded(line, nonce, 1)) - bare)
    return _padded(line, nonce, max(0, -((bare - wanted) // each)))


async def send_trunk(server: ServerClient, line: Trunk, *, tool_choice: str = "none") -> Usage:
    """Send a trunk as an orchestrator would, for one token."""
    body: dict[str, Any] = {
        "model": line.model,
        "messages": list(line.messages),
        "max_tokens": 1,
        "temperature": 0,
    }
    if line.tools:
        body |= {"tools": list(line.tools), "tool_choice": tool_choice}
    return Usage.of(await server.ask("/v1/chat/completions", body))


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt that was sent after the trunk, with which it shares a prefix.

    Attributes:
        name: What it is: a branch's carrier, or how much of the trunk it shares.
        tokens: Tokens of the prompt, as it was rendered.
        predicted: Tokens that the block rule says will hit.
        usage: What it cost.
    """

    name: str
    tokens: int
    predicted: int
    usage: Usage


async def send_branch(
    server: ServerClient, line: Trunk, renderer: Renderer, *, block_size: int
) -> Probe:
    """Send a branch on a trunk that was sent before.

    Raises:
        AlignmentError: No carrier keeps the trunk.
    """
    aligned = await Ladder().align(line, INSTRUCTION, renderer, block_size=block_size)
    predicted = predicted_cached(aligned.kept, len(aligned.branch), block_size)
    body: dict[str, Any] = {"model": line.model, "max_tokens": 1, "temperature": 0}
    if aligned.prompt is None:
        path = "/v1/completions"
        body["prompt"] = list(aligned.items or ())
    else:
        path = "/v1/chat/completions"
        body |= {"messages": list(aligned.prompt.messages), "tools": list(line.tools)}
        body["tool_choice"] = "none"
        if aligned.prompt.continue_final_message:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
    usage = Usage.of(await server.ask(path, body))
    return Probe(aligned.carrier, len(aligned.branch), predicted, usage)


async def send_shorter(
    server: ServerClient, line: Trunk, renderer: Renderer, *, block_size: int
) -> Probe:
    """Send a prompt that leaves a trunk early, after its first two messages."""
    short = line.prefix(2)
    whole = await renderer.render(Prompt.of(line))
    part = await renderer.render(Prompt.of(short))
    shared = common(whole, part)
    predicted = predicted_cached(shared, len(part), block_size)
    usage = await send_trunk(server, short)
    return Probe(f"{shared} tokens shared", len(part), predicted, usage)


async def send_with_priority(server: ServerClient, model: str) -> Reply:
    """Send a short request with a priority; vLLM may refuse one unless it schedules by it."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello."}],
        "max_tokens": 1,
        "priority": 1,
    }
    return await server.ask("/v1/chat/completions", body)


async def tokens_with_and_without_tools(renderer: Renderer, line: Trunk) -> tuple[int, int] | None:
    """Tokens of a trunk with its tools and without; None when it cannot be rendered."""
    try:
        with_tools = await _count(renderer, line)
        without = len(await renderer.render(replace(Prompt.of(line), tools=())))
    except AlignmentError:
        return None
    return with_tools, without


async def _count(renderer: Renderer, line: Trunk) -> int:
    return len(await renderer.render(Prompt.of(line)))


def _padded(line: Trunk, nonce: str, passages: int) -> Trunk:
    """The trunk with a first message of its own, and with a longer second one."""
    head = {"role": "system", "content": f"Session {nonce}. You are a research agent."}
    second = line.messages[1]
    content = f"{second['content']} {_PASSAGE * passages}"
    messages = [head, {**second, "content": content}, *line.messages[2:]]
    return Trunk.build(key=line.key, model=line.model, messages=messages, tools=line.tools)
