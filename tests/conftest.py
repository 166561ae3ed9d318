"""Fixtures around the one real vLLM server that a test session shares."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
import hypothesis
import pytest
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient
from prometheus_client.parser import text_string_to_metric_families

from langgraph_shadow.server.cluster import Replicas
from langgraph_shadow.server.local import LocalServer
from langgraph_shadow.server.metrics import ServerMetrics, fetch_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

# A shell that runs the tests in the background ignores Ctrl-C for them, and so would every server
# that they start and stop with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is no bug: examples have no time limit of their own.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.load_profile("default")

GENERATING = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running server, as tests see it."""

    root_url: str
    model: str

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    def metrics(self) -> ServerMetrics:
        return fetch_metrics(self.root_url)

    def requests_seen(self) -> int:
        """Generation requests that reached the server and were answered, refusals included."""
        page = httpx2.get(f"{self.root_url}/metrics", trust_env=False).text
        return sum(
            int(sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "http_requests_total" and sample.labels["handler"] in GENERATING
        )


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[VllmServer]:
    """The tiny model on a real vLLM; `LANGGRAPH_SHADOW_TEST_SERVER` names one that runs already."""
    running = os.environ.get("LANGGRAPH_SHADOW_TEST_SERVER")
    if running:
        models = httpx2.get(f"{running}/v1/models", trust_env=False).json()
        yield VllmServer(running.rstrip("/"), models["data"][0]["id"])
        return
    flags = ["--trust-request-chat-template"]  # templates of different behaviour on one server
    with LocalServer("tiny", served_model_name="m", extra_args=flags) as server:
        yield VllmServer(server.root_url, server.model)


def model_at(
    server: VllmServer | LocalServer | Replicas,
    *,
    transport: httpx2.AsyncBaseTransport | None = None,
    max_retries: int = 2,
) -> ChatOpenAI:
    """An orchestrator's model on a server.

    It has an HTTP client of its own: the default one is shared by all models of the process, and
    breaks in the second test's event loop (facts/langgraph.md, "Cross-loop").
    """
    return ChatOpenAI(
        base_url=server.base_url,
        model=server.model,
        api_key="x",
        temperature=0,
        max_tokens=16,
        max_retries=max_retries,
        stream_usage=True,
        use_responses_api=False,
        http_async_client=DefaultAsyncHttpxClient(transport=transport),
    )


@pytest.fixture
def llm(vllm_server: VllmServer) -> ChatOpenAI:
    """An orchestrator's model on the session's server."""
    return model_at(vllm_server)
