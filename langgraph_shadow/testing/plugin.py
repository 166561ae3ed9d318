"""The pytest plugin: the fixture `prefix_guard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from langgraph_shadow.testing.prefix_guard import PrefixGuard


@pytest.fixture
def prefix_guard() -> PrefixGuard:
    """Fails the test when the agent that is attached to it breaks its prefix.

    A test that has it must run at least one model call through `prefix_guard.attach(graph)`,
    `prefix_guard.watch(llm)` or `prefix_guard.callbacks`.
    """
    from langgraph_shadow.testing.prefix_guard import PrefixGuard

    return PrefixGuard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Judge when the test itself has passed, so that a break is its failure and no mere error."""
    yield
    guard: PrefixGuard | None = getattr(item, "funcargs", {}).get("prefix_guard")
    if guard is None:
        return
    from langgraph_shadow.testing.prefix_guard import PrefixBroken

    try:
        guard.assert_unbroken()
    except PrefixBroken as broken:
        pytest.fail(str(broken), pytrace=False)
