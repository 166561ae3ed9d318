"""The node: wraps a ToolNode, a function, a runnable or a subgraph that runs tools."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._runnable import RunnableCallable
from langgraph.config import get_config
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from langgraph_shadow.adapters.runs import Runs, checkpoint_namespace, graph_namespace
from langgraph_shadow.adapters.sight import Sight
from langgraph_shadow.runner.once import Once

log = logging.getLogger("langgraph_shadow")

T = TypeVar("T")

_NO_TRUNK = (
    "no model call of %s was captured, so the tool node alone cannot know the prompt; add "
    "one line: graph = shadow.attach(graph), or config={'callbacks': shadow.callbacks}, or "
    "llm = shadow.watch(llm)"
)


class ToolWatch:
    """Reads tool results out of whatever a tool node returns. Never raises, never mutates."""

    def __init__(self, sight: Sight, runs: Runs, once: Once) -> None:
        """Report to `sight`."""
        self._sight = sight
        self._runs = runs
        self._once = once

    def saw(self, state: Any, output: Any, config: Mapping[str, Any]) -> None:
        """A tool node returned `output` for `state`."""
        try:
            self._saw(state, output, config)
        except Exception as error:
            self._once.warn(log, "tool-watch", "the tools' results could not be read: %r", error)

    def _saw(self, state: Any, output: Any, config: Mapping[str, Any]) -> None:
        found = list(_tool_messages(output))
        if not found:
            if not _hands_off(output):
                self._once.warn(
                    log,
                    "no-tool-messages",
                    "the wrapped tool node returned no tool messages but %s; no branch runs for it",
                    type(output).__name__,
                )
            return
        configurable = config.get("configurable") or {}
        namespace = graph_namespace(checkpoint_namespace(configurable))
        named = configurable.get("thread_id") or self._runs.root(_parent(config))
        thread = str(named) if named else None
        known = self._sight.tools_finished(thread, namespace, found, assistant=_assistant(state))
        if not known:
            of = f"thread {thread!r}" if thread else "this run, which has no thread_id,"
            self._once.warn(log, f"no-trunk-{thread}", _NO_TRUNK, of)


def wrap_tool_node(inner: T, watch: ToolWatch, *, each_call: bool = False) -> T:
    """Wrap anything that runs tools, so that `watch` sees its results.

    Args:
        inner: A `ToolNode` (its type is kept, because other libraries look for it), a function, a
            runnable or a compiled subgraph.
        watch: What sees the results.
        each_call: Whether a `ToolNode` also shows each result as soon as it is there.

    Raises:
        TypeError: `inner` is nothing that LangGraph could run as a node.
    """
    if isinstance(inner, ToolNode):
        return cast("T", _wrap_prebuilt(inner, watch, each_call=each_call))
    if isinstance(inner, Runnable):
        return cast("T", _wrap_runnable(inner, watch))
    if callable(inner):
        return cast("T", _wrap_function(inner, watch))
    msg = (
        f"tool_node() takes a ToolNode, a function, a runnable or a compiled graph, "
        f"not {type(inner).__name__}"
    )
    raise TypeError(msg)


def _wrap_prebuilt(inner: ToolNode, watch: ToolWatch, *, each_call: bool) -> ToolNode:
    """A copy of the node whose function reports the whole output; tools' errors stay its own."""
    node = copy.copy(inner)
    if each_call:
        _watch_calls(node, watch)
    # bound methods belong to the node they were taken from, so the copy needs its own
    node.func = _wrap_function(node._func, watch)
    node.afunc = _wrap_function(node._afunc, watch)
    return node


def _watch_calls(node: ToolNode, watch: ToolWatch) -> None:
    """Put a wrapper around each tool call; a wrapper that the node has already runs inside it."""
    inner, ainner = node._wrap_tool_call, node._awrap_tool_call

    def call(request: ToolCallRequest, execute: Any) -> Any:
        result = inner(request, execute) if inner else execute(request)
        watch.saw(request.state, result, request.runtime.config)
        return result

    async def acall(request: ToolCallRequest, execute: Any) -> Any:
        result = await (ainner(request, execute) if ainner else execute(request))
        watch.saw(request.state, result, request.runtime.config)
        return result

    node._wrap_tool_call = call
    # a node with a synchronous wrapper alone uses that one in async runs too
    node._awrap_tool_call = acall if ainner or not inner else None


def _wrap_runnable(inner: Runnable[Any, Any], watch: ToolWatch) -> Runnable[Any, Any]:
    def invoke(state: Any, config: RunnableConfig) -> Any:
        output = inner.invoke(state, config)
        watch.saw(state, output, config)
        return output

    async def ainvoke(state: Any, config: RunnableConfig) -> Any:
        output = await inner.ainvoke(state, config)
        watch.saw(state, output, config)
        return output

    # not a RunnableLambda: that would add a step of ours to the graph's trace
    return RunnableCallable(invoke, ainvoke, name=inner.get_name(), trace=False, recurse=False)


def _wrap_function(inner: Callable[..., Any], watch: ToolWatch) -> Callable[..., Any]:
    """The same function, by signature too, since LangGraph injects arguments by name."""
    if inspect.iscoroutinefunction(inner):

        @functools.wraps(inner)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            output = await inner(*args, **kwargs)
            watch.saw(_state(args, kwargs), output, get_config())
            return output

        return acall

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        watch.saw(_state(args, kwargs), output, get_config())
        return output

    return call


def _state(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)


def _tool_messages(output: Any) -> Iterable[ToolMessage]:
    """Tool messages in a node's output: a state update, a list, Commands, or a mix."""
    if isinstance(output, ToolMessage):
        yield output
    elif isinstance(output, Command):
        if output.graph != Command.PARENT:  # a handoff: the next prompt is another agent's
            yield from _tool_messages(output.update)
    elif isinstance(output, Mapping):
        for value in output.values():
            if isinstance(value, list | tuple | ToolMessage):
                yield from _tool_messages(value)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from _tool_messages(item)
    elif hasattr(output, "messages"):
        yield from _tool_messages(output.messages)


def _hands_off(output: Any) -> bool:
    items = output if isinstance(output, list | tuple) else [output]
    return any(isinstance(i, Command) and i.graph == Command.PARENT for i in items)


def _assistant(state: Any) -> AIMessage | None:
    """The newest assistant message with tool calls in a node's input, if it shows one."""
    messages: Any = state.get("messages") if isinstance(state, Mapping) else state
    if not isinstance(messages, list | tuple):
        messages = getattr(state, "messages", None) or ()
    return next((m for m in reversed(messages) if isinstance(m, AIMessage) and m.tool_calls), None)


def _parent(config: Mapping[str, Any]) -> Any:
    return getattr(config.get("callbacks"), "parent_run_id", None)
