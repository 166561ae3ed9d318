"""Binds handlers to a compiled graph or to a model, and leaves both as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.language_models import BaseChatModel

G = TypeVar("G")
M = TypeVar("M", bound=BaseChatModel)


def attached(graph: G, handlers: Sequence[BaseCallbackHandler]) -> G:
    """The compiled graph with the handlers bound.

    Raises:
        TypeError: `graph` has no `with_config`; compile it first.
    """
    bound: Any = graph
    if not hasattr(bound, "with_config"):
        msg = f"attach() takes a compiled graph, not {type(graph).__name__}; call .compile()"
        raise TypeError(msg)
    made: G = bound.with_config(callbacks=list(handlers))
    return made


def watched(llm: M, handlers: Sequence[BaseCallbackHandler]) -> M:
    """A copy of the model that carries the handlers, each once; it shares the model's clients."""
    own = llm.callbacks
    if isinstance(own, BaseCallbackManager):
        manager = own.copy()
        for handler in handlers:
            manager.add_handler(handler)
        return llm.model_copy(update={"callbacks": manager})
    kept = [h for h in own or [] if h not in handlers]
    return llm.model_copy(update={"callbacks": [*kept, *handlers]})
