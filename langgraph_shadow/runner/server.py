"""What is known of the server that branches are sent to, found out once per event loop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
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

_TRIES = 3
"""Batches that ask for `/metrics` while the server is away or slow."""


class Server:
    """One server as one event loop sees it.

    Attributes:
        engine: The client.
        renderer: Tokens through `/tokenize`, or wire text when the server is not vLLM.
        block_size: Tokens per KV block, from `/metrics`; None when the server does not say.
        takes_priority: False once the server has refused a request because of its priority.
    """

    def __init__(self, llm: BaseChatOpenAI, *, timeout: float) -> None:
        """Describe the server that `llm` talks to; nothing is asked yet."""
        self.engine = Engine(llm, timeout=timeout)
        self._model = str(llm.model_name)
        self._users = 0
        self.restarted()

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Use the server; when nobody does any more, its connections close.

        An open connection would keep a finished event loop alive, or be left behind by it.
        """
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                await self.engine.rest()

    def restarted(self) -> None:
        """Forget what was found out: the server was away, and may come back as another one."""
        self.renderer: Renderer = ServerRenderer(self.engine.post, model=self._model)
        self.block_size: int | None = None
        self.takes_priority = True
        self._asked = False
        self._tries = 0

    async def find_out(self, once: Once) -> None:
        """Read `/metrics` unless it was read; what is missing is said once and worked around."""
        if self._asked:
            return
        engine = self.engine
        try:
            metrics = await engine.metrics()
        except (httpx2.HTTPError, ServerConfigError, ValueError) as error:
            self._tries += 1
            self._asked = not isinstance(error, httpx2.HTTPError) or self._tries >= _TRIES
            once.warn(
                log,
                "no-metrics",
                "%s/metrics could not be read (%s): block size and predictions are unknown",
                engine.root_url,
                error or type(error).__name__,
            )
            return
        self._asked = True
        self.block_size = metrics.block_size
        if metrics.enable_prefix_caching is False:
            once.warn(
                log,
                "no-prefix-caching",
                "the server at %s runs without prefix caching, so every branch computes its whole "
                "prompt: start vLLM with --enable-prefix-caching",
                engine.root_url,
            )

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
