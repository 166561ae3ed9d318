"""Which graph run a callback belongs to: callbacks name only their parent."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

_MAX_RUNS = 16_384


@dataclass(frozen=True, slots=True)
class _Run:
    root: UUID
    parent: UUID | None
    tool_namespace: str | None


class Runs:
    """The runs that are going on, each with its root. Thread-safe and bounded."""

    def __init__(self) -> None:
        self._runs: OrderedDict[UUID, _Run] = OrderedDict()
        self._lock = threading.Lock()

    def started(
        self, run_id: UUID, parent: UUID | None, *, tool_namespace: str | None = None
    ) -> None:
        """A run began; `tool_namespace` is the checkpoint namespace of a tool's run."""
        with self._lock:
            above = self._runs.get(parent) if parent is not None else None
            root = above.root if above is not None else (parent or run_id)
            self._runs[run_id] = _Run(root=root, parent=parent, tool_namespace=tool_namespace)
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)

    def ended(self, run_id: UUID) -> bool:
        """A run ended; True when it was a root."""
        with self._lock:
            run = self._runs.pop(run_id, None)
        return run is not None and run.parent is None

    def root(self, parent: UUID | None) -> UUID | None:
        """The root of a run whose parent is `parent`; None when no start of it was seen."""
        with self._lock:
            run = self._runs.get(parent) if parent is not None else None
        return run.root if run is not None else None

    def inside_tool(self, parent: UUID | None, namespace: str) -> bool:
        """Whether a call is a tool's own, and not that of an agent which runs inside the tool.

        An agent inside a tool has a checkpoint namespace of its own, below the tool's.
        """
        with self._lock:
            run = self._runs.get(parent) if parent is not None else None
            while run is not None:
                if run.tool_namespace is not None:
                    return run.tool_namespace == namespace
                run = self._runs.get(run.parent) if run.parent is not None else None
        return False


def checkpoint_namespace(source: Mapping[str, Any]) -> str:
    """The checkpoint namespace in a callback's metadata or a node's `configurable`."""
    return str(source.get("langgraph_checkpoint_ns") or source.get("checkpoint_ns") or "")


def graph_namespace(namespace: str) -> str:
    """The namespace of the graph that holds a node: the node's own, minus its last segment.

    `child:b4b8|model:77` and `child:b4b8|tools:91` belong to one history (facts/langgraph.md §3).
    """
    return namespace.rpartition("|")[0]
