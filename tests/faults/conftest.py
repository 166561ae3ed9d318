"""Every fault must be quiet: what a process would print because of us is collected and judged."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def frozen() -> None:
    """Leave what the imports made out of the collections below: each takes a fifth of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def quiet(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """At most one line per kind from us, nothing from asyncio, no warning, nothing on stderr."""
    loud: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: loud.append((u.exc_value, u.object)))
    monkeypatch.setattr(threading, "excepthook", lambda a: loud.append(a.exc_value))
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield
        gc.collect()
    assert loud == []
    assert [str(w.message) for w in caught if w.category in (ResourceWarning, RuntimeWarning)] == []
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []
    ours = Counter((r.name, r.msg) for r in caplog.records if r.name.startswith("langgraph_shadow"))
    assert [kind for kind, times in ours.items() if times > 1] == []
    assert capfd.readouterr().err == ""
