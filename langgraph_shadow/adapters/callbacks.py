"""The callback handlers: one captures and triggers, the other guards and may veto.

Both run inline: a handler that hops to a thread loses the order of calls and the running loop, and
an asynchronous one cannot veto a synchronous graph (facts/langgraph.md §3).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from langgraph_shadow.adapters.runs import Runs, checkpoint_namespace
from langgraph_shadow.errors import PrefixMutationError
from langgraph_shadow.runner.once import Once

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

    from langgraph_shadow.adapters.sight import Sight

log = logging.getLogger("langgraph_shadow")

P = ParamSpec("P")

_once = Once()


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """Keep every exception of ours out of the graph; a guard's veto passes."""

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except PrefixMutationError:
            raise
        except Exception as error:
            _once.warn(log, repr(error)[:80], "langgraph-shadow ignored its own error: %r", error)

    return wrapper


class GuardHandler(BaseCallbackHandler):
    """Compares each prompt with the one before it, and may veto the request.

    Kept apart from `ShadowCallbackHandler`, because `raise_error` applies to a whole handler.
    """

    run_inline = True

    def __init__(self, sight: Sight, *, veto: bool) -> None:
        """Guard what `sight` sees; with `veto` a break stops the request."""
        self._sight = sight
        self.raise_error = veto

    @harmless
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the prompt before it is sent.

        Raises:
            PrefixMutationError: The prompt breaks the prefix and the guard rejects breaks.
        """
        self._sight.guard(serialized, messages, run_id, parent_run_id, metadata or {}, kwargs)


class RunsHandler(BaseCallbackHandler):
    """Keeps up to date which run belongs to which graph run."""

    run_inline = True
    raise_error = False

    def __init__(self, runs: Runs) -> None:
        """Keep `runs` up to date."""
        self._runs = runs

    @harmless
    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """A graph, node or runnable began."""
        self._runs.started(run_id, parent_run_id)

    @harmless
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A graph, node or runnable ended."""
        self._chain_over(run_id, failed=False)

    @harmless
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A graph, node or runnable failed or was cancelled."""
        self._chain_over(run_id, failed=True)

    @harmless
    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool began."""
        namespace = checkpoint_namespace(metadata or {})
        self._runs.started(run_id, parent_run_id, tool_namespace=namespace)

    @harmless
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool ended."""
        self._runs.ended(run_id)

    @harmless
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool failed."""
        self._runs.ended(run_id)

    def _chain_over(self, run_id: UUID, *, failed: bool) -> None:
        if self._runs.ended(run_id):
            self._root_over(run_id, failed=failed)

    def _root_over(self, run_id: UUID, *, failed: bool) -> None:
        """A whole graph run ended."""


class ShadowCallbackHandler(RunsHandler):
    """Captures trunks and sees when the orchestrator's tokens, answers and runs come and end."""

    def __init__(self, sight: Sight, runs: Runs) -> None:
        """Report to `sight`; keep `runs` up to date."""
        super().__init__(runs)
        self._sight = sight

    @harmless
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A model call is about to be sent."""
        self._sight.started(serialized, messages, run_id, parent_run_id, metadata or {}, kwargs)

    @harmless
    def on_llm_new_token(
        self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """A model call streamed a token."""
        self._sight.token(run_id, kwargs.get("chunk"))

    @harmless
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A model call ended."""
        self._sight.ended(run_id, answer_of(response))

    @harmless
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A model call failed."""
        self._sight.ended(run_id, None)

    def _root_over(self, run_id: UUID, *, failed: bool) -> None:
        self._sight.run_over(run_id, failed=failed)


def answer_of(response: LLMResult) -> BaseMessage | None:
    """The message that a model call was answered by."""
    generation = next((g for group in response.generations for g in group), None)
    return getattr(generation, "message", None)
