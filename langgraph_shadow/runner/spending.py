"""What a branch made the server compute, in tokens."""

from __future__ import annotations

from langgraph_shadow.alignment.session import Aligned
from langgraph_shadow.runner.streaming import Answer

_CHARACTERS_PER_TOKEN = 4


def added(aligned: Aligned) -> int:
    """Tokens that a branch's prompt adds to its trunk; 0 when they cannot be counted."""
    return len(aligned.branch) - aligned.kept if aligned.branch.unit == "tokens" else 0


def computed(aligned: Aligned, answer: Answer) -> int:
    """Tokens that the server computed; a closed stream brings no usage, so they are estimated."""
    if answer.prompt_tokens is None:
        return added(aligned) + len(answer.text) // _CHARACTERS_PER_TOKEN
    kept = aligned.kept if aligned.branch.unit == "tokens" else 0
    cached = kept if answer.cached is None else answer.cached
    return max(0, answer.prompt_tokens - cached) + (answer.generated or 0)
