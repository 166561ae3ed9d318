"""The server under test: what it is, and one benchmark's connections to it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import openai
from langchain_openai import ChatOpenAI

from langgraph_shadow.alignment.ladder import Aligned, Ladder
from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.alignment.render_server import ServerRenderer
from langgraph_shadow.demo.connect import find_model
from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.runner.engine import Engine
from langgraph_shadow.runner.streaming import Answer
from langgraph_shadow.server.metrics import ServerMetrics, fetch_metrics
from langgraph_shadow.trunk.model import Trunk

if TYPE_CHECKING:
    from langgraph_shadow.trunk.model import Message

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """One server with one model.

    Attributes:
        base_url: Its address, ending in `/v1`.
        model: The served model's name.
        block_size: Tokens per KV block.
        max_tokens: Longest prompt plus answer, in tokens; None when the server does not say.
        version: The server's version.
    """

    base_url: str
    model: str
    block_size: int
    max_tokens: int | None
    version: str

    @classmethod
    def at(cls, base_url: str, model: str | None = None) -> Target:
        """Ask a running server what it is.

        Raises:
            ServerConfigError: It cannot be reached, or it is no vLLM with a prefix cache.
        """
        address, name = find_model(base_url, model)
        root = address.removesuffix("/v1")
        metrics = fetch_metrics(root)
        if metrics.block_size is None or metrics.enable_prefix_caching is False:
            problem = "The server does not say that it has a prefix cache"
            remedy = "Benchmark a vLLM server with prefix caching on."
            raise ServerConfigError(problem, url=root, remedy=remedy)
        headers = {"Authorization": f"Bearer {api_key()}"}
        with httpx.Client(base_url=root, headers=headers, timeout=10) as http:
            served = http.get("/v1/models").json()["data"]
            version = http.get("/version").json().get("version", "unknown")
        longest = next((m.get("max_model_len") for m in served if m["id"] == name), None)
        return cls(address, name, metrics.block_size, longest, version)

    @property
    def root_url(self) -> str:
        """The address without `/v1`."""
        return self.base_url.removesuffix("/v1")

    def metrics(self) -> ServerMetrics:
        """The server's counters now; blocking."""
        return fetch_metrics(self.root_url)

    def described(self) -> dict[str, Any]:
        """What a report says of the server."""
        return {"model": self.model, "block_size": self.block_size, "max_tokens": self.max_tokens}

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Connections of the running event loop, closed at the end."""
        http = openai.DefaultAsyncHttpxClient(timeout=TIMEOUT_S)
        session = Session(self, http)
        try:
            yield session
        finally:
            await session.engine.rest()
            await http.aclose()


class Session:
    """One benchmark's connections to the server under test.

    Attributes:
        target: The server.
        engine: Sends prompts and reads what they cost.
        renderer: Counts tokens.
    """

    def __init__(self, target: Target, http: Any) -> None:
        """Use `http` for the models, because a default client is shared by every loop."""
        self.target = target
        self._http = http
        self.engine = Engine(self.llm(), timeout=TIMEOUT_S)
        self.renderer = ServerRenderer(self.engine.post, model=target.model)

    def settings(self, **options: Any) -> dict[str, Any]:
        """A model's constructor arguments; `options` win over the defaults."""
        return {
            "base_url": self.target.base_url,
            "model": self.target.model,
            "api_key": api_key(),
            "temperature": 0,
            "max_tokens": 64,
            "max_retries": 0,
            "streaming": True,
            "stream_usage": True,
            "use_responses_api": False,
            "http_async_client": self._http,
            **options,
        }

    def llm(self, **options: Any) -> ChatOpenAI:
        """A model on this server."""
        return ChatOpenAI(**self.settings(**options))

    async def count(self, trunk: Trunk) -> int:
        """Tokens of a trunk's prompt."""
        return len(await self.renderer.render(Prompt.of(trunk)))

    async def orchestrate(self, trunk: Trunk, *, max_tokens: int = 1) -> Answer:
        """Send a trunk as its orchestrator would, so that its blocks are in the cache."""
        return await self.ask(Prompt.of(trunk), max_tokens=max_tokens)

    async def align(
        self, trunk: Trunk, instruction: str, *, ladder: Ladder | None = None
    ) -> Aligned:
        """Attach an instruction to a trunk, proved on the server's own rendering."""
        return await (ladder or Ladder()).align(
            trunk, instruction, self.renderer, block_size=self.target.block_size
        )

    async def branch(self, trunk: Trunk, aligned: Aligned, *, max_tokens: int = 1) -> Answer:
        """Send an aligned branch by the route that its carrier needs."""
        if aligned.prompt is not None:
            return await self.ask(aligned.prompt, max_tokens=max_tokens)
        salt = {k: v for k, v in trunk.fields.items() if k == "cache_salt"}
        body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **salt}
        return await self.engine.complete(trunk.model, aligned.items or (), body=body, headers={})

    async def ask(self, prompt: Prompt, *, max_tokens: int) -> Answer:
        """Send a prompt and generate exactly so many tokens."""
        body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return await self.engine.chat(prompt, body=body, headers={})


def api_key() -> str:
    """The key for the server under test."""
    return os.environ.get("LANGGRAPH_SHADOW_API_KEY", "none")


def fresh_salt() -> str:
    """A cache salt that nobody used before: what is sent with it finds nothing cached."""
    return uuid4().hex


def salted(trunk: Trunk, salt: str, *, messages: tuple[Message, ...] | None = None) -> Trunk:
    """The trunk under a cache salt."""
    return Trunk.build(
        key=trunk.key,
        model=trunk.model,
        messages=trunk.messages if messages is None else messages,
        tools=trunk.tools,
        fields={**trunk.fields, "cache_salt": salt},
    )


def seconds_since(start: float) -> float:
    """Seconds since a reading of `time.perf_counter`, rounded to milliseconds."""
    return round(time.perf_counter() - start, 3)
