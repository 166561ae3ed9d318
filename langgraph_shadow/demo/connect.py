"""Finding out, before the run, whether a model answers at an address, and cheaply."""

from __future__ import annotations

import asyncio

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.doctor import check_server
from langgraph_shadow.server.metrics import fetch_metrics


def find_model(base_url: str, model: str | None) -> tuple[str, str]:
    """The address that ends in `/v1`, and the name of a model that is served there.

    Args:
        base_url: An OpenAI-compatible address, with or without `/v1`.
        model: The model wanted; the first one served when None.

    Raises:
        ServerConfigError: No server, no such API, no such model, no prefix caching or no report of
            cached tokens; the message says what to do.
    """
    checked = asyncio.run(check_server(base_url, model=model))
    return checked.base_url, checked.model


def block_size(base_url: str) -> int | None:
    """Tokens per KV block, or None when the server does not say."""
    try:
        return fetch_metrics(base_url.removesuffix("/v1")).block_size
    except ServerConfigError:
        return None
