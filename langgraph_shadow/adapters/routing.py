"""Routing at the wire: the session, the salt and the hints that the orchestrator's requests carry.

The callback knows the thread, the payload is what leaves. Both run in the same context, the
callback first, so the run's id is handed over in a context variable.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any, TypeVar, cast
from uuid import UUID

from langchain_openai.chat_models.base import BaseChatOpenAI

from langgraph_shadow.runner.affinity import Route

log = logging.getLogger("langgraph_shadow.runner")

M = TypeVar("M", bound=BaseChatOpenAI)

MARK = "langgraph_shadow_routed"
"""Metadata key by which a routed model's calls are known."""

_REMEMBERED = 256

_run: ContextVar[UUID | None] = ContextVar("langgraph_shadow_run", default=None)


class Routing:
    """What each running call of a routed model is to carry."""

    def __init__(self) -> None:
        self._routes: OrderedDict[UUID, Route] = OrderedDict()
        self._classes: dict[type[Any], type[Any]] = {}
        self._lock = threading.Lock()

    def enter(self, run_id: UUID) -> None:
        """A call begins in this context; it carries nothing until `expect` says what."""
        _run.set(run_id)

    def expect(self, run_id: UUID, route: Route) -> None:
        """The call that begins is to carry `route`."""
        with self._lock:
            self._routes[run_id] = route
            while len(self._routes) > _REMEMBERED:
                self._routes.popitem(last=False)

    def ended(self, run_id: UUID) -> None:
        """The call is over."""
        with self._lock:
            self._routes.pop(run_id, None)

    def payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The payload with what the running call carries; what it says for itself stays."""
        run_id = _run.get()
        route = self._routes.get(run_id) if run_id is not None else None
        if route is None:
            return payload
        given = Route(
            headers=payload.get("extra_headers") or {}, body=payload.get("extra_body") or {}
        )
        sent = route.under(given)
        changed = dict(payload)
        if sent.headers:
            changed["extra_headers"] = sent.headers
        if sent.body:
            changed["extra_body"] = {k: v for k, v in sent.body.items() if k not in payload}
        return changed

    def routed(self, llm: M) -> M:
        """A copy of the model whose requests carry what is expected of them.

        The copy is of a subclass, so that it is still what it was to `isinstance`.
        """
        if (llm.metadata or {}).get(MARK):
            return llm
        copy = llm.model_copy(update={"metadata": {**(llm.metadata or {}), MARK: True}})
        base = type(llm)
        if base not in self._classes:  # to make a pydantic class takes milliseconds
            self._classes[base] = _subclass(base, self)
        object.__setattr__(copy, "__class__", self._classes[base])
        return copy


def _subclass(base: type[M], routing: Routing) -> type[M]:
    def _get_request_payload(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super(made, self)._get_request_payload(*args, **kwargs)
        try:
            return routing.payload(payload)
        except Exception as error:
            log.warning("a request goes without its session: %r", error)
            return payload

    made: type[Any] = type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "_get_request_payload": _get_request_payload,
        },
    )
    return cast("type[M]", made)
