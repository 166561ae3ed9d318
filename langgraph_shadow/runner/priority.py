"""Requests that ask to be later than the orchestrator's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import openai

from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Options
from langgraph_shadow.runner.server import Server
from langgraph_shadow.runner.streaming import Answer

log = logging.getLogger("langgraph_shadow.runner")

LATER = 10
"""What `auto` adds to the orchestrator's own priority; vLLM serves smaller numbers first."""


async def ask_later(
    ask: Callable[[dict[str, Any]], Awaitable[Answer]],
    body: Mapping[str, Any],
    *,
    server: Server,
    options: Options,
    once: Once,
) -> Answer:
    """Send a request with a priority, and once more without it when the server refuses that.

    Whether a server schedules by priority is visible nowhere: vLLM ignores the field under
    `--scheduling-policy fcfs` (facts/vllm.md, "Two requests at once"), other servers may refuse it.

    Args:
        ask: Sends a body.
        body: The body, with the orchestrator's own priority when it has one.
        server: Remembers a refusal.
        options: The priority wanted.
        once: For the log line about a refusal.
    """
    own = dict(body)
    wanted = options.priority
    if wanted is None or not server.takes_priority:
        return await ask(own)
    number = int(own.get("priority") or 0) + LATER if wanted == "auto" else wanted
    try:
        return await ask({**own, "priority": number})
    except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
        if "priority" not in error.message.lower():
            raise
        server.takes_priority = False
        once.warn(log, "no-priority", "the server refuses priorities; branches go without one")
        return await ask(own)
