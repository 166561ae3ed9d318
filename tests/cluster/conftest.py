"""Fixtures around real servers behind a real router; each part is skipped where it cannot run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.cluster import Replicas, check_machine

HERE = Path(__file__).parent
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1"}
WAIT_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.integration)


def need(*modules: str, servers: int = 2) -> None:
    """Skip where a package is missing, or where the machine is too small."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make install)")
    try:
        check_machine("tiny", servers, SMALL)
    except ServerConfigError as error:
        pytest.skip(error.problem)


@pytest.fixture(scope="session")
def _replicas() -> Iterator[Replicas]:
    need("vllm_router")
    # a replica that a test has killed and started again must not stay shut out for the next test
    flags = ["--enable-program-scheduling", "--cb-timeout-duration-secs", "2"]
    with Replicas("tiny", served_model_name="m", env=SMALL, router_args=flags) as cluster:
        yield cluster


@pytest.fixture
def replicas(_replicas: Replicas) -> Replicas:
    """Two replicas of the tiny model, both running."""
    for server in _replicas.servers:
        if not server.running:
            server.start()
    wait_for_healthy(_replicas, len(_replicas.servers))
    return _replicas


def wait_for_healthy(replicas: Replicas, count: int) -> None:
    """Wait until the router knows of so many servers that are well: it asks every two seconds."""
    url = f"{replicas.root_url}/readiness"
    until(lambda: httpx2.get(url, trust_env=False).json()["healthy_workers"] == count)


def until(done: Callable[[], bool], again: Callable[[], object] = lambda: None) -> None:
    """Wait for what a server tells; `again` is done for those that nobody heard yet."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.1)):
        again()
        if done():
            return
        pause.wait(0.1)
    pytest.fail("the server never told")
