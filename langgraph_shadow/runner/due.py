"""Which branches a tool batch is worth: their own `when` decides."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from langgraph_shadow.branches.branch import BatchView, Branch
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.once import Once

log = logging.getLogger("langgraph_shadow.runner")


def due(branches: Iterable[Branch], batch: Batch, once: Once) -> list[Branch]:
    """The branches to run on a batch; one whose `when` raises is left out, and said so once."""
    view = _view_of(batch)
    found = []
    for branch in branches:
        try:
            if branch.when is None or branch.when(view):
                found.append(branch)
        except Exception as error:
            once.warn(
                log,
                f"when-{branch.name}",
                "the `when` of branch %r raised %r; the branch is left out",
                branch.name,
                error,
            )
    return found


def _view_of(batch: Batch) -> BatchView:
    key = batch.trunk.key
    return BatchView(
        thread=key.thread,
        namespace=key.namespace,
        node=key.node,
        tool_names=batch.tools.names,
        tool_call_ids=batch.tools.call_ids,
        index=batch.index,
    )
