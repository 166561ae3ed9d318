"""What `langgraph-shadow demo --json` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, field_serializer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.messages import AIMessage

    from langgraph_shadow.delivery.ledger import LedgerRow


class OrchestratorUse(BaseModel):
    """What the agent's own model calls used, as the server counted it.

    Attributes:
        calls: Model calls.
        prompt_tokens: Prompt tokens of all calls.
        cached_tokens: How many of them came from the prefix cache.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @classmethod
    def of(cls, replies: Sequence[AIMessage]) -> OrchestratorUse:
        """Add up the usage of the replies."""
        usages = [reply.usage_metadata for reply in replies if reply.usage_metadata]
        return cls(
            calls=len(replies),
            prompt_tokens=sum(usage["input_tokens"] for usage in usages),
            cached_tokens=sum(
                usage.get("input_token_details", {}).get("cache_read") or 0 for usage in usages
            ),
        )


class BranchReport(BaseModel):
    """One branch; the fields are those of `LedgerRow`."""

    model_config = ConfigDict(from_attributes=True)

    branch: str
    carrier: str
    prompt_tokens: int | None
    kept: int | None
    predicted: int | None
    cached: int | None
    ttft_ms: float | None
    lag_ms: float | None
    verdict: str
    text: str

    @field_serializer("ttft_ms", "lag_ms")
    def _tenths(self, value: float | None) -> float | None:
        return value if value is None else round(value, 1)


class DemoReport(BaseModel):
    """One run of the demo.

    Attributes:
        mode: `shared` or `mirror`.
        model: The served model's name.
        block_size: Tokens per KV block; None when the server does not say.
        answer: The agent's answer.
        orchestrator: What the agent's own calls used.
        branches: One entry per branch, oldest first.
        delivered: Updates that came while the agent worked.
        dropped: Branches that were due but not sent.
        late: Updates that came after the answer.
        ghosts: Shadow texts found in state, checkpoints or message stream.
    """

    mode: Literal["shared", "mirror"]
    model: str
    block_size: int | None
    answer: str
    orchestrator: OrchestratorUse
    branches: list[BranchReport]
    delivered: int
    dropped: int
    late: int
    ghosts: int

    def summary(self) -> str:
        """The run in one sentence."""
        if not self.branches:
            return "The agent used no tool, so no branch was due."
        known = [b for b in self.branches if None not in (b.predicted, b.cached)]
        right = sum(branch.predicted == branch.cached for branch in known)
        return (
            f"Tokens predicted = tokens cached on {right} of {len(self.branches)} branches; "
            f"updates that reached you before the answer: {self.delivered}; "
            f"shadow text in the agent's state, checkpoints and messages: {self.ghosts}."
        )


def branch_reports(rows: Sequence[LedgerRow]) -> list[BranchReport]:
    """The ledger's rows as they appear in the report."""
    return [BranchReport.model_validate(row) for row in rows]
