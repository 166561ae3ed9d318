"""The vLLM client: one request, its usage and its timing. One engine per event loop."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import openai

from langgraph_shadow.alignment.render import Prompt, RendererUnavailableError
from langgraph_shadow.errors import AlignmentError, ServerConfigError
from langgraph_shadow.runner.streaming import Answer, collect, never
from langgraph_shadow.server.metrics import ServerMetrics, parse_metrics

if TYPE_CHECKING:
    from langchain_openai.chat_models.base import BaseChatOpenAI

_TOO_MANY = 429
_NO_SUCH_ROUTE = frozenset({401, 403, 404, 405, 501})
_METRICS_TIMEOUT_S = 5.0


def _ignore() -> None:
    return None


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    # loading the certificates takes tens of milliseconds, too long for each loop of a graph
    return httpx2.create_ssl_context()


@dataclass(frozen=True, slots=True)
class _Clients:
    http: httpx2.AsyncClient
    client: openai.AsyncOpenAI
    streams: weakref.WeakSet[Any]

    async def close(self) -> None:
        try:
            await self.http.aclose()
        except asyncio.CancelledError:  # the loop ends: the pool stops at its first connection
            for stream in list(self.streams):
                await stream.aclose()
            raise

    def headers(self) -> dict[str, str]:
        own = {k: v for k, v in self.client.default_headers.items() if isinstance(v, str)}
        return own | self.client.auth_headers


class Engine:
    """Talks to one server from one event loop, with an HTTP client of its own.

    The orchestrator's HTTP client is shared by every loop and breaks in a second one
    (facts/langgraph.md §4, "Cross-loop"), so only its address, headers and key are taken over.
    """

    def __init__(self, llm: BaseChatOpenAI, *, timeout: float) -> None:
        self._llm = llm
        self._timeout = timeout
        self._clients: _Clients | None = None
        self.base_url = str(llm.root_async_client.base_url).rstrip("/")
        self.root_url = self.base_url.removesuffix("/v1")

    def _open(self) -> _Clients:
        if self._clients is None:
            streams: weakref.WeakSet[Any] = weakref.WeakSet()

            async def remember(response: httpx2.Response) -> None:
                if (stream := response.extensions.get("network_stream")) is not None:
                    streams.add(stream)

            http = httpx2.AsyncClient(
                timeout=self._timeout,
                verify=_ssl_context(),
                event_hooks={"response": [remember]},
            )
            client = self._llm.root_async_client.with_options(
                http_client=http, max_retries=0, timeout=self._timeout
            )
            self._clients = _Clients(http, client, streams)
        return self._clients

    async def post(self, path: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """POST to a path beside `/v1` (vLLM serves `/tokenize` there) and return the JSON.

        Raises:
            RendererUnavailableError: The path cannot be used on this server.
            AlignmentError: The server refused this body.
            httpx2.HTTPError: The server is away or overloaded; it may be back for the next batch.
        """
        clients = self._open()
        url = self.root_url + path
        response = await clients.http.post(url, json=body, headers=clients.headers())
        status = response.status_code
        if status in _NO_SUCH_ROUTE:
            msg = f"{path} answered {status} at {self.root_url}"
            raise RendererUnavailableError(msg)
        if response.is_server_error or status == _TOO_MANY:
            msg = f"{path} answered {status}"
            raise httpx2.HTTPStatusError(msg, request=response.request, response=response)
        try:
            answer = response.json()
        except ValueError as error:
            answer = {"error": {"message": f"status {status}, and no JSON"}}
            if response.is_success:
                msg = f"{path} answered with something else than JSON at {self.root_url}"
                raise RendererUnavailableError(msg) from error
        if response.is_error:
            msg = f"the server refused the prompt: {_error_text(answer)}"
            raise AlignmentError(msg)
        if not isinstance(answer, dict):
            msg = f"{path} answered with no JSON object at {self.root_url}"
            raise RendererUnavailableError(msg)
        return answer

    async def get(self, path: str) -> Mapping[str, Any]:
        """GET a JSON object from a path beside `/v1`; empty when there is none.

        Raises:
            httpx2.HTTPError: The server is away.
        """
        clients = self._open()
        response = await clients.http.get(self.root_url + path, headers=clients.headers())
        try:
            answer = response.json() if response.is_success else {}
        except ValueError:
            answer = {}
        return answer if isinstance(answer, dict) else {}

    async def metrics(self) -> ServerMetrics:
        """Read `/metrics`.

        Raises:
            ServerConfigError: There is no such page.
            ValueError: It is not in the Prometheus format.
            httpx2.HTTPError: The server is away or overloaded.
        """
        clients = self._open()
        response = await clients.http.get(
            self.root_url + "/metrics",
            headers=clients.headers(),
            timeout=min(self._timeout, _METRICS_TIMEOUT_S),
        )
        if response.is_server_error:
            msg = f"/metrics answered {response.status_code}"
            raise httpx2.HTTPStatusError(msg, request=response.request, response=response)
        if response.is_error:
            msg = f"/metrics answered {response.status_code}"
            raise ServerConfigError(msg, url=self.root_url, remedy="Is this a vLLM server?")
        return parse_metrics(response.text)

    async def chat(
        self,
        prompt: Prompt,
        *,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        until: Callable[[str], bool] = never,
        on_first_token: Callable[[], None] = _ignore,
    ) -> Answer:
        """Stream one chat completion.

        Args:
            prompt: The prompt; its tools are always sent, with `tool_choice="none"`.
            body: Every other request field.
            headers: Extra headers.
            until: Fed with each piece of text; when it returns True the stream is closed, which
                aborts the request on the server and loses its usage.
            on_first_token: Called once, at the first generated token.
        """
        tools: dict[str, Any] = (
            {"tools": list(prompt.tools), "tool_choice": "none"} if prompt.tools else {}
        )
        flags: dict[str, Any] = (
            {"continue_final_message": True, "add_generation_prompt": False}
            if prompt.continue_final_message
            else {}
        )
        start = time.perf_counter()
        messages: list[Any] = list(prompt.messages)
        async with self._open().client.chat.completions.with_streaming_response.create(
            model=prompt.model,
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={**prompt.fields, **tools, **flags, **body},
            extra_headers=dict(headers),
        ) as stream:
            return await collect(stream.http_response, start, until, on_first_token)

    async def complete(
        self,
        model: str,
        ids: tuple[int, ...],
        *,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        until: Callable[[str], bool] = never,
        on_first_token: Callable[[], None] = _ignore,
    ) -> Answer:
        """Stream one completion of a prompt given as token ids; arguments as for `chat`."""
        start = time.perf_counter()
        async with self._open().client.completions.with_streaming_response.create(
            model=model,
            prompt=list(ids),
            stream=True,
            stream_options={"include_usage": True},
            extra_body=dict(body),
            extra_headers=dict(headers),
        ) as stream:
            return await collect(stream.http_response, start, until, on_first_token)

    async def rest(self) -> None:
        """Close the connections, which must not outlive their loop; the next request opens one."""
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.close()


def _error_text(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or answer)[:200]
