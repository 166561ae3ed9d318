"""What is known of the server that branches are sent to, found out once per event loop."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2

from langgraph_shadow.alignment.render import Renderer
from langgraph_shadow.alignment.render_server import ServerRenderer, WireRenderer
from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.runner.engine import Engine
from langgraph_shadow.runner.once import Once

if TYPE_CHECKING:
    from langchain_openai.chat_models.base import BaseChatOpenAI

log = logging.getLogger("langgraph_shadow.server")


@dataclass(slots=True)
class Server:
    """One server as one event loop sees it.

    Attributes:
        engine: The client.
        renderer: Tokens through `/tokenize`, or wire text when the server is not vLLM.
        block_size: Tokens per KV block, from `/metrics`; None when the server does not say.
    """

    engine: Engine
    renderer: Renderer
    block_size: int | None

    @classmethod
    async def find_out(cls, llm: BaseChatOpenAI, *, timeout: float, once: Once) -> Server:
        """Connect and read `/metrics`; what is missing is said once and worked around."""
        engine = Engine(llm, timeout=timeout)
        model = str(llm.model_name)
        server = cls(engine, ServerRenderer(engine.post, model=model), None)
        try:
            metrics = await engine.metrics()
        except (httpx2.HTTPError, ServerConfigError, ValueError) as error:
            once.warn(
                log,
                "no-metrics",
                "%s/metrics could not be read (%s): block size and predictions are unknown",
                engine.root_url,
                error,
            )
            return server
        server.block_size = metrics.block_size
        if metrics.enable_prefix_caching is False:
            once.warn(
                log,
                "no-prefix-caching",
                "the server at %s runs without prefix caching, so every branch computes its whole "
                "prompt: start vLLM with --enable-prefix-caching",
                engine.root_url,
            )
        return server

    def fall_back_to_wire(self, reason: str, once: Once) -> None:
        """Stop rendering: the server has no usable `/tokenize`."""
        once.warn(
            log,
            "no-tokenize",
            "%s; branches go as a plain user turn and their predictions are unknown. "
            "On vLLM, /tokenize must be reachable beside /v1",
            reason,
        )
        self.renderer = WireRenderer()
