"""When the orchestrator's model calls ran: the upper half of the ledger's timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from langgraph_shadow.trunk.model import TrunkKey

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage


@dataclass(frozen=True, slots=True)
class CallRow:
    """One model call of the orchestrator. Times are `time.perf_counter` seconds.

    Attributes:
        thread: LangGraph's thread id.
        namespace: Checkpoint namespace of the agent.
        node: The node that called the model.
        started: When it was sent.
        first_token: When its first token came; None when it did not stream.
        ended: When it was answered, or failed.
        called: Names of the tools that it asked for.
        failed: Whether it ended without an answer.
        prompt_tokens: Tokens of its prompt; None when the server did not say.
        cached: How many of them came from the prefix cache.
    """

    thread: str
    namespace: str
    node: str
    started: float
    first_token: float | None
    ended: float
    called: tuple[str, ...] = ()
    failed: bool = False
    prompt_tokens: int | None = None
    cached: int | None = None

    @classmethod
    def of(
        cls,
        key: TrunkKey,
        message: BaseMessage | None,
        *,
        started: float,
        first_token: float | None,
        ended: float,
    ) -> Self:
        """The row of a call that was answered with `message`, or failed (None)."""
        usage: Any = getattr(message, "usage_metadata", None) or {}
        details = usage.get("input_token_details") or {}
        return cls(
            thread=key.thread,
            namespace=key.namespace,
            node=key.node,
            started=started,
            first_token=first_token,
            ended=ended,
            called=tuple(str(c["name"]) for c in getattr(message, "tool_calls", None) or ()),
            failed=message is None,
            prompt_tokens=usage.get("input_tokens"),
            cached=details.get("cache_read"),
        )
