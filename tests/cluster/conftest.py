"""Fixtures around real servers behind a real router; each part is skipped where it cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.cluster import Replicas, check_machine

HERE = Path(__file__).parent
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1"}


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
    scheduling = ["--enable-program-scheduling"]
    with Replicas("tiny", served_model_name="m", env=SMALL, router_args=scheduling) as cluster:
        yield cluster


@pytest.fixture
def replicas(_replicas: Replicas) -> Replicas:
    """Two replicas of the tiny model, both running."""
    for server in _replicas.servers:
        if not server.running:
            server.start()
    return _replicas
