"""From LangChain messages to the wire: the only place that uses langchain-openai's private API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import PROMPT_FIELDS, Message

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI

_SAMPLING_FIELDS = (
    *("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "logit_bias"),
    *("presence_penalty", "frequency_penalty"),
)
_ROUTING_FIELDS = ("session_id", "session_params", "user", "priority")


@dataclass(frozen=True, slots=True)
class WireRequest:
    """What a model call puts on the wire besides its messages.

    Attributes:
        model: The served model's name.
        tools: Tool schemas, in the order sent.
        fields: Fields that enter the prompt or the block hash.
        routing: Body fields by which a router picks the replica and the scheduler the order; a
            branch repeats them, but for a later priority.
        headers: The call's own extra headers; a branch repeats them.
        stream: Whether the call itself asked for a stream (LangGraph may switch it on later).
        tool_choice: Whether and which tools may be called, as sent; None when left to the model.
    """

    model: str
    tools: tuple[Message, ...]
    fields: Mapping[str, Any]
    routing: Mapping[str, Any]
    headers: Mapping[str, str]
    stream: bool
    tool_choice: Any = None


def wire_messages(llm: BaseChatOpenAI, messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """Serialise messages exactly as `llm` puts them on the wire.

    Each message is serialised on its own, so a caller may pass only the new ones
    (facts/langgraph.md §4).

    Raises:
        AlignmentError: The model speaks the Responses API, whose prompt cannot be rendered.
    """
    payload = llm._get_request_payload(list(messages))
    if "messages" not in payload:
        msg = (
            "the model uses the Responses API, whose prompt cannot be rendered; "
            "build it with ChatOpenAI(use_responses_api=False)"
        )
        raise AlignmentError(msg)
    return tuple(payload["messages"])


def wire_sampling(
    llm: BaseChatOpenAI, messages: Sequence[BaseMessage], tools: Sequence[Message]
) -> dict[str, Any]:
    """The request fields by which `llm` would sample an answer: none of them enters the prompt.

    Both routes take them, `/v1/chat/completions` and `/v1/completions`.

    Args:
        llm: The model; a subclass may choose them by what it is asked.
        messages: What it is asked.
        tools: The tools that it may call.
    """
    offered: dict[str, Any] = {"tools": list(tools)} if tools else {}
    payload = llm._get_request_payload(list(messages), **offered)
    fields = {k: payload[k] for k in _SAMPLING_FIELDS if payload.get(k) is not None}
    fields |= payload.get("extra_body") or {}
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    return {k: v for k, v in fields.items() if k not in (*PROMPT_FIELDS, *_ROUTING_FIELDS)}


def wire_request(params: Mapping[str, Any]) -> WireRequest:
    """Read a call's request fields from `invocation_params`, as `on_chat_model_start` shows them.

    `extra_body` is flattened into the body by the OpenAI client, so it is read the same way.
    """
    body = {**params, **(params.get("extra_body") or {})}
    return WireRequest(
        model=str(body.get("model") or body.get("model_name") or ""),
        tools=tuple(body.get("tools") or ()),
        fields={k: body[k] for k in PROMPT_FIELDS if body.get(k) is not None},
        routing={k: body[k] for k in _ROUTING_FIELDS if body.get(k) is not None},
        headers=dict(params.get("extra_headers") or {}),
        stream=bool(body.get("stream")),
        tool_choice=body.get("tool_choice"),
    )
