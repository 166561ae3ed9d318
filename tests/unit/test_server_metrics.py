"""`/metrics` as numbers."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.metrics import ServerMetrics, fetch_metrics, parse_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 640.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1001.0
# TYPE vllm:prompt_tokens_cached counter
vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 641.0
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 360.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 641.0
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 4.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2.5
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0"} 1.0
# TYPE python_info gauge
python_info{version="3.11"} 1.0
"""


def test_every_number_is_read() -> None:
    metrics = parse_metrics(PAGE)
    assert metrics == ServerMetrics(
        block_size=32,
        enable_prefix_caching=True,
        num_requests_running=2,
        num_requests_waiting=3,
        kv_cache_usage=0.25,
        prefix_cache_queries=1000,
        prefix_cache_hits=640,
        prompt_tokens_total=1001,
        prompt_tokens_cached_total=641,
        prompt_tokens_by_source={"local_compute": 360, "local_cache_hit": 641},
        requests_finished=5,
        ttft_seconds_sum=2.5,
        ttft_count=5,
    )
    assert metrics.ttft_seconds_mean == 0.5


def test_what_is_not_there_is_not_guessed() -> None:
    metrics = parse_metrics("# TYPE python_info gauge\npython_info 1.0\n")
    assert metrics == ServerMetrics()
    assert metrics.block_size is None
    assert metrics.enable_prefix_caching is None
    assert metrics.ttft_seconds_mean is None


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1)), min_size=1, max_size=8))
def test_engines_are_summed_and_the_fullest_cache_counts(
    engines: list[tuple[int, float]],
) -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{i}"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{engine="{i}"}} {usage!r}\n'
        for i, (running, usage) in enumerate(engines)
    )
    metrics = parse_metrics(page)
    assert metrics.num_requests_running == sum(running for running, _ in engines)
    assert metrics.kv_cache_usage == max(usage for _, usage in engines)


@pytest.fixture
def site() -> Iterator[tuple[str, dict[str, str]]]:
    pages: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(pages.get(self.path, "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", pages
        server.shutdown()


def test_a_server_is_asked_at_its_root(site: tuple[str, dict[str, str]]) -> None:
    url, pages = site
    pages["/metrics"] = PAGE
    assert fetch_metrics(f"{url}/").block_size == 32


def test_what_is_no_metrics_page_is_said_with_the_address(
    site: tuple[str, dict[str, str]],
) -> None:
    url, pages = site
    with pytest.raises(ServerConfigError, match="404") as caught:
        fetch_metrics(url)
    assert caught.value.url == f"{url}/metrics"
    pages["/metrics"] = "<html>vllm: hello</html>"
    with pytest.raises(ServerConfigError, match="not in the Prometheus format"):
        fetch_metrics(url)
