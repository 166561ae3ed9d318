"""The trunk: what the orchestrator puts on the wire, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
"""One message in OpenAI wire form. Never mutated once it is part of a trunk."""

PROMPT_FIELDS = (
    "add_generation_prompt",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "lora_request",
    "mm_processor_kwargs",
    "reasoning_effort",
)
"""Request fields that enter vLLM's prompt or block hash (facts/vllm.md, "The prefix cache")."""


def canonical(value: object) -> bytes:
    """Serialise a wire value so that equal bytes mean an equal prompt; key order is kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode(
        "utf-8", "surrogatepass"
    )


def digest(before: bytes, value: object) -> bytes:
    """Chain `value` onto the digest `before`: 16 bytes that stand for everything so far."""
    return hashlib.blake2b(before + canonical(value), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class TrunkKey:
    """Which line of model calls a trunk belongs to.

    Attributes:
        thread: LangGraph's `thread_id`, or the root run's id when there is none.
        namespace: Checkpoint namespace of the graph that holds the node; "" at the top.
        node: The LangGraph node that called the model.
    """

    thread: str
    namespace: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class ToolBatch:
    """All tool results that answer one assistant message, in call order.

    Attributes:
        call_ids: The tool call ids of that message, in call order.
        names: The tools' names, in call order.
        end: Index into the trunk's messages just after the last tool result.
    """

    call_ids: tuple[str, ...]
    names: tuple[str, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Trunk:
    """What the orchestrator sent (or is about to send), in wire form.

    Attributes:
        key: Thread, checkpoint namespace and node.
        model: The served model's name.
        messages: Wire messages, system prompt first.
        tools: Tool schemas in wire form, in the order sent.
        fields: The request's other fields that enter the prompt or the block hash
            (`PROMPT_FIELDS`).
        digests: Fingerprint chain; `digests[i]` stands for the head (model, tools, fields) and
            `messages[:i]`, so equal digests mean an equal prefix.
        exact: True when captured from a model call, False when predicted.
    """

    key: TrunkKey
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    digests: tuple[bytes, ...] = ()
    exact: bool = True

    @classmethod
    def build(
        cls,
        *,
        key: TrunkKey,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        fields: Mapping[str, Any] | None = None,
        exact: bool = True,
    ) -> Trunk:
        """Build a trunk from scratch; cost O(messages)."""
        kept = {k: v for k, v in (fields or {}).items() if v is not None}
        head = digest(b"", [model, list(tools), kept])
        empty = cls(
            key=key,
            model=model,
            messages=(),
            tools=tuple(tools),
            fields=kept,
            digests=(head,),
            exact=exact,
        )
        return empty.extend(messages, exact=exact)

    def extend(self, messages: Sequence[Message], *, exact: bool = False) -> Trunk:
        """Return this trunk with `messages` appended; serialises only the new messages."""
        chain = list(self.digests)
        for message in messages:
            chain.append(digest(chain[-1], message))
        return replace(
            self, messages=(*self.messages, *messages), digests=tuple(chain), exact=exact
        )

    def prefix(self, count: int) -> Trunk:
        """Return the trunk that ends after `count` messages."""
        return replace(self, messages=self.messages[:count], digests=self.digests[: count + 1])

    def extends(self, before: Trunk) -> bool:
        """Whether `before` is a prefix of this trunk (same head, same leading messages)."""
        count = len(before.messages)
        return count < len(self.digests) and self.digests[count] == before.digests[count]

    @property
    def fingerprint(self) -> str:
        """Hex digest of the whole trunk."""
        return self.digests[-1].hex()

    @property
    def batch(self) -> ToolBatch | None:
        """The complete tool batch after the last assistant message, or None."""
        last = next(
            (
                i
                for i in range(len(self.messages) - 1, -1, -1)
                if self.messages[i]["role"] == "assistant"
            ),
            None,
        )
        if last is None or not self.messages[last].get("tool_calls"):
            return None
        calls = self.messages[last]["tool_calls"]
        answered = {
            m.get("tool_call_id"): i
            for i, m in enumerate(self.messages[last + 1 :], last + 1)
            if m["role"] == "tool"
        }
        ids = tuple(str(call.get("id")) for call in calls)
        if not all(i in answered for i in ids):
            return None
        names = tuple(str(call.get("function", {}).get("name")) for call in calls)
        return ToolBatch(call_ids=ids, names=names, end=max(answered.values()) + 1)

    @property
    def has_reasoning(self) -> bool:
        """Whether any assistant message carries reasoning (templates gate on it)."""
        return any(m.get("reasoning") or m.get("reasoning_content") for m in self.messages)
