"""The user's own last look at what a person is about to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from langgraph_shadow.branches.verdict import Verdict, map_strings

Redact: TypeAlias = Callable[[str], str | None]
"""Sees each verdict's text before it is delivered; returns the text to deliver, or None."""


class _WithheldError(Exception):
    """The hook returned None."""


def apply_redaction(verdict: Verdict, redact: Redact | None) -> Verdict:
    """Let the hook see and change what a person would see. Never raises.

    The hook never sees the prompt: changing that would break the prefix.

    Args:
        verdict: Any verdict; only updates are shown to the hook, an object's strings one by one.
        redact: The hook. Returning None withholds the whole verdict; so does raising, as `failed`.
    """
    if redact is None or verdict.kind != "update":
        return verdict

    def change(text: str) -> str:
        new = redact(text)
        if new is None:
            raise _WithheldError
        if not isinstance(new, str):
            msg = f"the redaction hook returned {type(new).__name__}, not str or None"
            raise TypeError(msg)
        return new

    try:
        if verdict.data is not None:
            return replace(verdict, data=map_strings(verdict.data, change))
        text = change(verdict.text)
    except _WithheldError:
        return Verdict("skip", reason="withheld by the redaction hook")
    except Exception as error:
        return Verdict(
            "failed", reason=f"the redaction hook raised {type(error).__name__}; text withheld"
        )
    if not text.strip():
        return Verdict("skip", reason="emptied by the redaction hook")
    return replace(verdict, text=text)
