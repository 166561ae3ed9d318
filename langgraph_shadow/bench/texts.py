"""Synthetic histories: research loops of a wanted length, each with words of its own."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey

if TYPE_CHECKING:
    from langgraph_shadow.bench.target import Session

SYSTEM = (
    "You are a careful research agent. Search the archive, read what it brings, and answer with "
    "what you have read. Never guess; say so when the archive does not know."
)
_TEXT = (
    "the archive shows that every winter snow gathers on high ground and slowly turns to ice while "
    "rivers carry dark sand away from a valley where people measured depth with long wooden poles "
    "before satellites came and numbers changed because summers grew warmer than any record had"
)
_WORDS = _TEXT.split()

SEARCH: Message = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the archive for a topic and return the passages that fit best.",
        "parameters": {
            "type": "object",
            "properties": {"topic": {"type": "string", "description": "What to look for."}},
            "required": ["topic"],
        },
    },
}


def prose(seed: str, words: int) -> str:
    """So many words, the same for the same seed."""
    return " ".join(random.Random(seed).choices(_WORDS, k=words)) + "."


def research(seed: str, words: int, *, words_per_result: int = 180) -> tuple[Message, ...]:
    """A history that ends with a tool result and whose results hold so many words in all."""
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"What does the archive know? ({seed})"},
    ]
    steps = max(1, round(words / words_per_result))
    for step in range(steps):
        arguments = json.dumps({"topic": prose(f"{seed} topic {step}", 3)})
        call: dict[str, Any] = {"name": "search", "arguments": arguments}
        made = {"id": f"call{step:05d}", "type": "function", "function": call}
        result = prose(f"{seed} {step}", max(1, words // steps))
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": made["id"], "name": "search", "content": result},
        ]
    return tuple(messages)


def research_trunk(seed: str, words: int, *, model: str) -> Trunk:
    """The history as a trunk."""
    return Trunk.build(
        key=TrunkKey(thread=seed), model=model, messages=research(seed, words), tools=(SEARCH,)
    )


async def trunk_of(session: Session, seed: str, tokens: int) -> Trunk:
    """A trunk of about so many tokens, counted by the server."""
    words = max(1, tokens // 2)
    for _ in range(3):
        trunk = research_trunk(seed, words, model=session.target.model)
        counted = await session.count(trunk)
        if abs(counted - tokens) <= tokens // 50:
            break
        words = max(1, round(words * tokens / counted))
    return trunk
