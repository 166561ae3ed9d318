"""What the guard found: the fixed vocabulary of kinds, and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from langgraph_shadow.trunk.model import TrunkKey

Kind = Literal[
    "clock",
    "identifier",
    "edited",
    "removed",
    "summarised",
    "inserted",
    "reordered",
    "tools",
    "serialisation",
    "reasoning",
    "request_field",
    "isolation",
    "unknown",
]
"""How a trunk broke the prefix of the one before it; docs/guard.md explains each."""

REPAIRS: dict[Kind, str] = {
    "clock": "Freeze the time when the thread starts, or put it into the newest user or tool "
    "message.",
    "identifier": "Keep the identifier constant for the thread, or put it into metadata instead "
    "of the prompt.",
    "edited": "Leave sent messages as they are; put what is new into a message at the end.",
    "removed": "Keep the history append-only, or cut it rarely, in one big step announced with "
    "expect_break.",
    "summarised": "Compact rarely and in one big step, and announce it with expect_break.",
    "inserted": "Append the new message at the end instead of inserting it.",
    "reordered": "Keep messages in the order they were first sent; tool results in call order.",
    "tools": "Send the same tools in the same order on every call; refuse a tool when it is "
    "called instead of leaving it out.",
    "serialisation": "Serialise the value once and send the same text again.",
    "reasoning": "Send the reasoning of earlier answers back as the server gave it.",
    "request_field": "Keep this request field constant for the thread.",
    "isolation": "Keep model, LoRA and cache_salt constant for the thread; the KV cache is "
    "separate for each.",
    "unknown": "Compare the two requests; the prompt must only grow at its end.",
}
"""What to do, one sentence per kind."""

GuardMode = Literal["off", "observe", "warn", "reject", "repair"]
"""`off` compares nothing; `observe` records; `warn` also logs once per kind and thread;
`reject` raises before the request is sent; `repair` mends what can be mended safely."""


@dataclass(frozen=True, slots=True)
class Report:
    """One break: a trunk that does not extend the one before it.

    Attributes:
        key: Thread, checkpoint namespace and node.
        kind: The kind of mutation.
        path: Where it is, for example `messages[0].content` or `tools[2].function.parameters`.
        offset: Characters into that field where the two versions part.
        before: Short excerpt of the old text, limited to the differing span.
        after: Short excerpt of the new text, limited to the differing span.
        repair: What to do about it, one sentence.
        lost_share: Share (0 to 1) of the previous trunk's characters that can no longer be reused.
        token: Token index where reuse ends, when a renderer priced it.
        block: KV block index where reuse ends, when a renderer priced it.
        lost_tokens: Tokens of the previous prompt that must be computed again, when priced.
        expected: The reason given to `expect_break`, when the break was announced.
    """

    key: TrunkKey
    kind: Kind
    path: str
    offset: int
    before: str
    after: str
    repair: str
    lost_share: float = 0.0
    token: int | None = None
    block: int | None = None
    lost_tokens: int | None = None
    expected: str | None = None

    def message(self) -> str:
        """The report as a few plain sentences."""
        where = f"{self.path}, character {self.offset}"
        node = f" in node {self.key.node!r}" if self.key.node else ""
        lost = (
            f"{self.lost_tokens} tokens"
            if self.lost_tokens is not None
            else f"about {self.lost_share:.0%} of the prompt"
        )
        return (
            f"The prompt of thread {self.key.thread!r}{node} no longer extends the one before it: "
            f"{self.kind} at {where} ({self.before!r} became {self.after!r}). "
            f"The server would compute {lost} again. {self.repair}"
        )
