"""What a server says that it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.metrics import ServerMetrics, parse_metrics

if TYPE_CHECKING:
    from langgraph_shadow.server.client import ServerClient

_UNAUTHORISED = (401, 403)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, or a LoRA adapter, that a server serves.

    Attributes:
        name: What requests call it.
        parent: The model that it adapts; None for a model of its own.
        max_model_len: Tokens of the longest prompt with its answer; None when it does not say.
    """

    name: str
    parent: str | None = None
    max_model_len: int | None = None


async def served_models(server: ServerClient) -> tuple[ServedModel, ...]:
    """The models, in the server's order; at least one.

    Raises:
        ServerConfigError: Nothing answers, the key is refused, it is no such API, or there is none.
    """
    reply = await server.get("/v1/models")
    url = server.base_url
    if reply.status in _UNAUTHORISED:
        problem = f"The server refused the API key (HTTP {reply.status})"
        remedy = "Set LANGGRAPH_SHADOW_API_KEY, or use --api-key where there is one."
        raise ServerConfigError(problem, url=url, remedy=remedy)
    listed = reply.body.get("data")
    if not reply.ok or not isinstance(listed, list):
        problem = f"This is no OpenAI-compatible API (HTTP {reply.status} on /v1/models)"
        remedy = "Check the address; for vLLM it is http://HOST:PORT/v1."
        raise ServerConfigError(problem, url=url, remedy=remedy)
    found = tuple(_model(m) for m in listed if isinstance(m, dict) and m.get("id"))
    if not found:
        problem, remedy = "The server serves no model", "Start it with a model."
        raise ServerConfigError(problem, url=url, remedy=remedy)
    return found


def choose(models: tuple[ServedModel, ...], wanted: str | None, *, url: str) -> ServedModel:
    """The model wanted, or the first one.

    Raises:
        ServerConfigError: It is not served; names those that are.
    """
    chosen = models[0] if wanted is None else next((m for m in models if m.name == wanted), None)
    if chosen is None:
        problem = f"The server does not serve {wanted!r}"
        remedy = f"Use --model with one of: {', '.join(m.name for m in models)}."
        raise ServerConfigError(problem, url=url, remedy=remedy)
    return chosen


async def read_metrics(server: ServerClient) -> ServerMetrics:
    """The server's `/metrics`.

    Raises:
        ServerConfigError: There is no such page, or it is not vLLM's.
    """
    reply = await server.get("/metrics")
    url = f"{server.root_url}/metrics"
    if not reply.ok:
        problem = f"The server's metrics could not be read (HTTP {reply.status})"
        remedy = "vLLM serves them beside /v1; let the router or proxy pass them through."
        raise ServerConfigError(problem, url=url, remedy=remedy)
    try:
        return parse_metrics(reply.text)
    except ValueError as error:
        problem = "This page is not in the Prometheus format"
        remedy = "Give the address of a vLLM server, without /v1."
        raise ServerConfigError(problem, url=url, remedy=remedy) from error


def _model(listed: dict[str, Any]) -> ServedModel:
    length = listed.get("max_model_len")
    return ServedModel(
        name=str(listed["id"]),
        parent=str(listed["parent"]) if listed.get("parent") else None,
        max_model_len=length if isinstance(length, int) else None,
    )
