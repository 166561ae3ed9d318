"""What a branch repeats of its orchestrator's request so that both reach the same KV blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PER_REQUEST = frozenset(
    {"x-request-id", "x-correlation-id", "x-trace-id", "traceparent", "tracestate", "baggage"}
) | {"x-vllm-priority"}
"""Headers that name one request; repeated, they would tie a branch to another request's trace. The
priority header would win over the branch's own, later priority."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """The orchestrator's routing: the same replica, tenant and session for the branch.

    Attributes:
        headers: Headers that a branch repeats.
        body: Body fields that a branch repeats.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, headers: Mapping[str, str], body: Mapping[str, Any]) -> Affinity:
        """Keep what routes, drop what names a single request."""
        kept = {k: v for k, v in headers.items() if k.lower() not in _PER_REQUEST}
        return cls(headers=kept, body=dict(body))
