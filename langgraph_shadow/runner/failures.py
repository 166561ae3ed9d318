"""What an error of a branch's request means: for its row, and for the server's health."""

from __future__ import annotations

from dataclasses import dataclass

import httpx2
import openai

from langgraph_shadow.errors import AlignmentError

_OF_THE_PROMPT = frozenset({400, 413, 422})
"""Statuses that blame one prompt, not the server."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a branch has no verdict.

    Attributes:
        reason: For the ledger's row, in one line.
        healthy: Whether the server is well; None when the error does not tell.
        away: Whether the server could not be reached, and may come back as another one.
        bug: Whether this is an error of our own, or one that nobody thought of.
    """

    reason: str
    healthy: bool | None = False
    away: bool = False
    bug: bool = False


def failure_of(error: Exception, *, timeout: float) -> Failure:
    """Say what an error means.

    Args:
        error: What a branch's request raised.
        timeout: Seconds that the branch had.
    """
    match error:
        case AlignmentError():
            return Failure(error.reason, healthy=None)
        case TimeoutError():
            return Failure(f"no verdict within {timeout:g} s")
        case openai.APIStatusError():
            reason = f"the server answered {error.status_code}: {one_line(error.message)}"
            return Failure(reason, healthy=error.status_code in _OF_THE_PROMPT)
        case httpx2.HTTPStatusError():
            return Failure(one_line(error))
        case openai.APIConnectionError() | httpx2.HTTPError() | OSError():
            return Failure(f"the server could not be reached: {one_line(error)}", away=True)
        case openai.OpenAIError():
            return Failure(f"the server failed: {one_line(error)}")
    return Failure(f"{type(error).__name__}: {one_line(error)}", healthy=None, bug=True)


def one_line(error: object) -> str:
    """An error's words in one line of 200 characters at most."""
    return " ".join(str(error).split())[:200]
