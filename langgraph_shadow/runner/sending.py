"""Sends an aligned prompt by the route that its carrier needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langgraph_shadow.alignment.ladder import refuse_reason
from langgraph_shadow.alignment.session import Aligned
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.runner.engine import Engine
from langgraph_shadow.runner.streaming import Answer, never
from langgraph_shadow.trunk.model import Trunk


def _nothing() -> None:
    return None


async def send_aligned(
    engine: Engine,
    trunk: Trunk,
    aligned: Aligned,
    *,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    until: Callable[[str], bool] = never,
    on_first_token: Callable[[], None] = _nothing,
) -> Answer:
    """Stream the answer to a prompt that was shown to keep its trunk.

    Args:
        engine: Where it is sent.
        trunk: The trunk that it keeps.
        aligned: The prompt: a chat, or the token ids of a spliced one.
        body: Every other request field.
        headers: Extra headers.
        until: Fed with each piece of text; when it returns True nothing more is read.
        on_first_token: Called once, at the first generated token.

    Raises:
        AlignmentError: The request would share no blocks with the trunk.
    """
    if aligned.prompt is not None:
        fields = {**aligned.prompt.fields, **body}
        refused = refuse_reason(trunk, fields, model=aligned.prompt.model)
        if refused is not None:
            raise AlignmentError(refused)
        return await engine.chat(
            aligned.prompt,
            body=body,
            headers=headers,
            until=until,
            on_first_token=on_first_token,
        )
    # thinking markers are special tokens in some tokenizers, and must be seen to be cut off
    spliced = {**body, "skip_special_tokens": False}
    if aligned.opening is not None and aligned.opening.stop:
        spliced["stop_token_ids"] = list(aligned.opening.stop)
    salt = trunk.fields.get("cache_salt")
    if salt:
        spliced["cache_salt"] = salt
    return await engine.complete(
        trunk.model,
        aligned.items or (),
        body=spliced,
        headers=headers,
        until=until,
        on_first_token=on_first_token,
    )
