"""Having a server compute a prompt before anyone asks for its answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.runner.budget import Budget
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.options import Options
from langgraph_shadow.runner.priority import ask_later
from langgraph_shadow.runner.server import Server
from langgraph_shadow.runner.streaming import Answer

log = logging.getLogger("langgraph_shadow.runner")


async def warm(
    prompt: Prompt,
    server: Server,
    *,
    route: Route,
    options: Options,
    budget: Budget,
    once: Once,
) -> bool:
    """Have a server compute a prompt, for one generated token; False when it could not.

    One token is the least that vLLM generates (facts/vllm.md, "Two requests at once").
    """

    async def ask(body: dict[str, Any]) -> Answer:
        return await server.engine.chat(prompt, body=body, headers=route.headers)

    if budget.closed() or await budget.pressure(server.engine.metrics):
        return False
    body = {**route.body, "max_tokens": 1}
    try:
        async with asyncio.timeout(options.timeout):
            await ask_later(ask, body, server=server, options=options, once=once)
    except Exception as error:
        once.warn(log, "warm", "a prompt could not be computed ahead: %r", error)
        return False
    return True
