"""Middleware for langchain's `create_agent` (extra `middleware`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ToolCallRequest, TracePolicy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from langgraph_shadow.adapters.node import ToolWatch


class ShadowMiddleware(AgentMiddleware[Any, Any]):
    """Watches the agent's model and tools.

    It adds no node to the graph: it wraps calls and changes nothing in them but the model's
    callbacks. Its place in the middleware list does not matter, since the prompt is captured where
    the model is called, after every other middleware's edits (facts/langgraph.md §2).
    """

    # langchain traces every middleware's call with its whole request; ours adds nothing to see
    trace_policy = TracePolicy(process_inputs=lambda _: {}, process_outputs=lambda _: {})

    def __init__(
        self, *, watch_model: Callable[[BaseChatModel], BaseChatModel], tools: ToolWatch
    ) -> None:
        """Watch models with `watch_model` and tool results with `tools`."""
        super().__init__()
        self._watch_model = watch_model
        self._tools = tools

    def wrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]
    ) -> ModelResponse:
        """Let the handlers see the call."""
        return handler(request.override(model=self._watch_model(request.model)))

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Let the handlers see the call."""
        return await handler(request.override(model=self._watch_model(request.model)))

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """See the result of a tool call."""
        result = handler(request)
        self._tools.saw(request.state, result, request.runtime.config)
        return result

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """See the result of a tool call."""
        result = await handler(request)
        self._tools.saw(request.state, result, request.runtime.config)
        return result
