"""What a way of reusing another agent's KV cache is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.spans import Span


@dataclass(frozen=True, slots=True)
class Hop:
    """One agent takes over a context that the agent before it has read.

    Attributes:
        model: The model of both agents.
        agent: Name of the agent that takes over.
        prefix: The cache of its own role prompt, from position 0; the context stands behind it.
        tokens: The context's token ids, shape [n].
        source: The context's cache as the agent before holds it, where it lies there.
        dense: Computes the context's cache behind `prefix`, at the price of a prefill.
    """

    model: LabModel
    agent: str
    prefix: Span
    tokens: torch.Tensor
    source: Span
    dense: Callable[[], Span]

    @property
    def offset(self) -> int:
        """Position of the context's first token in this agent's prompt."""
        return len(self.prefix)

    def rotated(self) -> Span:
        """The source's cache, moved to this agent's positions."""
        return self.source.moved(self.offset, self.model.rope)


class Reuse(Protocol):
    """A way to get a context's cache for an agent without a prefill."""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        ...

    def apply(self, hop: Hop) -> Span:
        """The context's cache for the hop's agent, standing at `hop.offset`."""
        ...

    def own_numbers(self, hop: Hop) -> int:
        """Numbers that are this agent's alone when everything else stays shared.

        A server that cannot turn keys or add factors inside its attention keeps a full copy
        instead, whatever this says.
        """
        ...

    def stored_numbers(self) -> int:
        """Numbers kept beside all caches, for all agents and requests together."""
        ...
