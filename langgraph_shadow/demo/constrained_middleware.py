"""`constrained` for `create_agent`: needs the `middleware` extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from langgraph_shadow.demo import constrained

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class ConstrainedCalls(AgentMiddleware):
    """Chooses the tool calls of a model too small to write them by constrained decoding."""

    def wrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]
    ) -> ModelResponse:
        """Constrain one model call."""
        return _read(handler(_constrain(request)), request)

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Constrain one model call."""
        return _read(await handler(_constrain(request)), request)


def _constrain(request: ModelRequest) -> ModelRequest:
    body = {
        **(getattr(request.model, "extra_body", None) or {}),
        **constrained.constraint(request.messages),
    }
    settings: dict[str, Any] = {**request.model_settings, "extra_body": body}
    return request.override(model_settings=settings, tool_choice="none")


def _read(response: ModelResponse, request: ModelRequest) -> ModelResponse:
    response.result = [
        constrained.read_reply(message, request.messages)
        if isinstance(message, AIMessage)
        else message
        for message in response.result
    ]
    return response
