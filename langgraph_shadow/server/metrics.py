"""vLLM's `/metrics` as typed numbers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from langgraph_shadow.errors import ServerConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetrics:
    """What a vLLM server says about itself; counters count since its start.

    A server with several engines is read as one: counters and queues are summed, and the fullest
    cache counts.

    Attributes:
        block_size: Tokens per block of the prefix cache; `None` when the server does not say.
        enable_prefix_caching: Whether blocks are reused; `None` when the server does not say.
        num_requests_running: Requests being computed now.
        num_requests_waiting: Requests in the queue now.
        kv_cache_usage: Share of the KV cache in use, 0 to 1.
        prefix_cache_queries: Prompt tokens looked up in the prefix cache.
        prefix_cache_hits: Prompt tokens found there.
        prompt_tokens_total: Prompt tokens of all requests.
        prompt_tokens_cached_total: Those that needed no computing.
        prompt_tokens_by_source: The same by where they came from (`local_compute`, …).
        requests_finished: Finished requests, whatever ended them.
        ttft_seconds_sum: Seconds to the first token, summed over all requests.
        ttft_count: Requests in that sum.
        cache_config: The KV cache's settings as vLLM prints them (`sliding_window`, …).
    """

    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens_total: int = 0
    prompt_tokens_cached_total: int = 0
    prompt_tokens_by_source: Mapping[str, int] = field(default_factory=dict)
    requests_finished: int = 0
    ttft_seconds_sum: float = 0.0
    ttft_count: int = 0
    cache_config: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ttft_seconds_mean(self) -> float | None:
        """Mean seconds to the first token; `None` before the first request."""
        return self.ttft_seconds_sum / self.ttft_count if self.ttft_count else None


def parse_metrics(text: str) -> ServerMetrics:
    """Reads the Prometheus text of a vLLM server; what is not there keeps its default.

    Raises:
        ValueError: The text is not in the Prometheus format.
    """
    sums: dict[str, float] = defaultdict(float)
    sources: dict[str, int] = defaultdict(int)
    usage = 0.0
    config: dict[str, str] = {}
    for sample in _samples(text):
        name = sample.name.removeprefix("vllm:")
        sums[name] += sample.value
        if name == "kv_cache_usage_perc":
            usage = max(usage, sample.value)
        elif name == "cache_config_info":
            config = sample.labels
        elif name == "prompt_tokens_by_source_total":
            sources[sample.labels["source"]] += int(sample.value)
    block_size, caching = config.get("block_size", ""), config.get("enable_prefix_caching")
    return ServerMetrics(
        block_size=int(block_size) if block_size.isdigit() else None,
        enable_prefix_caching=None if caching is None else caching == "True",
        num_requests_running=int(sums["num_requests_running"]),
        num_requests_waiting=int(sums["num_requests_waiting"]),
        kv_cache_usage=usage,
        prefix_cache_queries=int(sums["prefix_cache_queries_total"]),
        prefix_cache_hits=int(sums["prefix_cache_hits_total"]),
        prompt_tokens_total=int(sums["prompt_tokens_total"]),
        prompt_tokens_cached_total=int(sums["prompt_tokens_cached_total"]),
        prompt_tokens_by_source=dict(sources),
        requests_finished=int(sums["request_success_total"]),
        ttft_seconds_sum=sums["time_to_first_token_seconds_sum"],
        ttft_count=int(sums["time_to_first_token_seconds_count"]),
        cache_config=config,
    )


def fetch_metrics(root_url: str, *, timeout: float = 5.0) -> ServerMetrics:
    """Asks a server for its `/metrics`; blocking.

    Args:
        root_url: The server without `/v1`.
        timeout: Seconds.

    Raises:
        ServerConfigError: Nothing answers there, or what answers is not vLLM's metrics page.
    """
    url = f"{root_url.rstrip('/')}/metrics"
    try:
        response = httpx2.get(url, timeout=timeout)
        response.raise_for_status()
        return parse_metrics(response.text)
    except httpx2.HTTPError as error:
        problem = f"The server's metrics could not be read: {error}"
        remedy = "Check the address (without /v1) and that the server is running."
        raise ServerConfigError(problem, url=url, remedy=remedy) from error
    except ValueError as error:
        problem = "This page is not in the Prometheus format"
        remedy = "Give the address of a vLLM server, without /v1."
        raise ServerConfigError(problem, url=url, remedy=remedy) from error


def _samples(text: str) -> Iterator[Sample]:
    # Histogram buckets are most of the page, and reading them takes ten times as long.
    lines = (line for line in text.splitlines() if "_bucket{" not in line)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        if family.name.startswith("vllm:"):
            yield from family.samples
