"""A server asked over HTTP, outside of any graph: for the doctor and the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import httpx2

from langgraph_shadow.alignment.render import RendererUnavailableError
from langgraph_shadow.errors import AlignmentError, ServerConfigError

if TYPE_CHECKING:
    from types import TracebackType

KEY_VARIABLE = "LANGGRAPH_SHADOW_API_KEY"
TIMEOUT_S = 60.0
_BAD_REQUEST = 400
_EXCERPT = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever its status.

    Attributes:
        status: The HTTP status.
        text: The body as it came.
        body: The body as a JSON object; empty when it is none.
    """

    status: int
    text: str
    body: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether the status is a success."""
        return self.status < _BAD_REQUEST

    @property
    def problem(self) -> str:
        """The server's own words about what was wrong, cut short."""
        error = self.body.get("error")
        message = error.get("message") if isinstance(error, dict) else self.body.get("message")
        return " ".join(str(message or self.text).split())[:_EXCERPT]


class ServerClient:
    """One server, asked with its API key. Use it as `async with ServerClient(url) as server`.

    Attributes:
        root_url: The server without `/v1`.
        base_url: The OpenAI-compatible address, which ends in `/v1`.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = TIMEOUT_S) -> None:
        """Address a server.

        Args:
            url: With or without `/v1`.
            api_key: The key; `$LANGGRAPH_SHADOW_API_KEY` when left out.
            timeout: Seconds for one request.

        Raises:
            ServerConfigError: The address is none.
        """
        self.root_url = url.rstrip("/").removesuffix("/v1")
        self.base_url = f"{self.root_url}/v1"
        key = api_key or os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.root_url, headers=headers, timeout=timeout
            )
        except httpx2.InvalidURL as error:
            raise self._away(error) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Reply:
        """GET a path of the root.

        Raises:
            ServerConfigError: Nothing answers there.
        """
        return await self._ask("GET", path, None)

    async def ask(self, path: str, body: dict[str, Any]) -> Reply:
        """POST a JSON body to a path of the root.

        Raises:
            ServerConfigError: Nothing answers there.
        """
        return await self._ask("POST", path, body)

    async def post(self, path: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """POST for a `ServerRenderer`.

        Raises:
            RendererUnavailableError: The path cannot be used on this server.
            AlignmentError: The server refused this body.
        """
        try:
            reply = await self.ask(path, body)
        except ServerConfigError as error:
            raise RendererUnavailableError(str(error)) from error
        if reply.status == _BAD_REQUEST:
            msg = f"the server refused the prompt: {reply.problem}"
            raise AlignmentError(msg)
        if not reply.ok or not reply.body:
            msg = (
                f"{self.root_url}{path} answered {reply.status}; a vLLM server that serves {path} "
                "is needed"
            )
            raise RendererUnavailableError(msg)
        return reply.body

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Reply:
        try:
            response = await self._http.request(method, path, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._away(error) from error
        try:
            held = response.json()
        except ValueError:
            held = None
        return Reply(response.status_code, response.text, held if isinstance(held, dict) else {})

    def _away(self, error: Exception) -> ServerConfigError:
        problem = f"No model server answers: {str(error) or type(error).__name__}"
        remedy = "Check the address (URL or --base-url, http://HOST:PORT), and that a server is up."
        return ServerConfigError(problem, url=self.root_url, remedy=remedy)
