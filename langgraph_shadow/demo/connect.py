"""Finding out, before the run, whether a model answers at an address."""

from __future__ import annotations

import os

import httpx

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.metrics import fetch_metrics

TIMEOUT_S = 10.0


def find_model(base_url: str, model: str | None) -> tuple[str, str]:
    """The address that ends in `/v1`, and the name of a model that is served there.

    Args:
        base_url: An OpenAI-compatible address, with or without `/v1`.
        model: The model wanted; the first one served when None.

    Raises:
        ServerConfigError: No server, no such API, no such model; the message says what to do.
    """
    address = base_url.rstrip("/")
    if not address.endswith("/v1"):
        address += "/v1"
    served = _served(address)
    if model and model not in served:
        problem = f"The server does not serve {model!r}"
        remedy = f"Use --model with one of: {', '.join(served)}."
        raise ServerConfigError(problem, url=address, remedy=remedy)
    return address, model or served[0]


def block_size(base_url: str) -> int | None:
    """Tokens per KV block, or None when the server does not say."""
    try:
        return fetch_metrics(base_url.removesuffix("/v1")).block_size
    except ServerConfigError:
        return None


def _served(address: str) -> list[str]:
    key = os.environ.get("LANGGRAPH_SHADOW_API_KEY", "none")
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(f"{address}/models", headers=headers, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problem = f"No model server answers: {error}"
        remedy = "Check --base-url, or leave it out to have a local server started."
        raise ServerConfigError(problem, url=address, remedy=remedy) from error
    if answer.status_code in (401, 403):
        problem = f"The server refused the API key (HTTP {answer.status_code})"
        remedy = "Set LANGGRAPH_SHADOW_API_KEY."
        raise ServerConfigError(problem, url=address, remedy=remedy)
    try:
        answer.raise_for_status()
        names = [str(entry["id"]) for entry in answer.json()["data"]]
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
        problem = f"This is no OpenAI-compatible API (HTTP {answer.status_code} on /models)"
        remedy = "Check --base-url; for vLLM it is http://HOST:PORT/v1."
        raise ServerConfigError(problem, url=address, remedy=remedy) from error
    if not names:
        problem, remedy = "The server serves no model", "Start it with a model."
        raise ServerConfigError(problem, url=address, remedy=remedy)
    return names
