"""Routing at the wire: the session, the salt and the hints that the orchestrator's requests carry.

The callback knows the thread, the payload is what leaves. Both run in the same context, the
callback first, so the run's id is handed over in a context variable.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from langchain_openai.chat_models.base import BaseChatOpenAI
from langgraph.config import get_config

from langgraph_shadow.runner.affinity import Affinity, Route
from langgraph_shadow.runner.conversation import Conversations
from langgraph_shadow.runner.errands import Work
from langgraph_shadow.runner.hints import Hints
from langgraph_shadow.runner.once import Once
from langgraph_shadow.trunk.model import Trunk, TrunkKey
from langgraph_shadow.trunk.wire import WireRequest, wire_messages

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

log = logging.getLogger("langgraph_shadow.runner")

M = TypeVar("M", bound=BaseChatOpenAI)

MARK = "langgraph_shadow_routed"
"""Metadata key by which a routed model's calls are known."""

_REMEMBERED = 256

_NO_SESSION = (
    "the orchestrator's requests carry no session, because callbacks cannot change a request, so a "
    "router may send its branches elsewhere; give the graph the model that shadow.watch(llm) "
    "returns, or use shadow.middleware()"
)

_run: ContextVar[UUID | None] = ContextVar("langgraph_shadow_run", default=None)


class Routing:
    """Decides what a call carries when it begins, and puts it on a routed model's request."""

    def __init__(
        self,
        affinity: Affinity,
        *,
        hints: Hints,
        conversations: Conversations,
        llm: BaseChatOpenAI,
        errand: Callable[[Work], None],
        once: Once,
    ) -> None:
        """Set up the routing of one shadow.

        Args:
            affinity: Which part of a request carries the session.
            hints: What a router's scheduler is told of the orchestrator.
            conversations: Names the conversations whose blocks a proxy gives back.
            llm: The model whose server hints and conversations are for.
            errand: Does something with the server in the background.
            once: For warnings.
        """
        self._affinity = affinity
        self._hints = hints
        self._conversations = conversations
        self._llm = llm
        self._errand = errand
        self._once = once
        self._sent: OrderedDict[UUID, Route] = OrderedDict()
        self._classes: dict[type[Any], type[Any]] = {}
        self._lock = threading.Lock()

    def route(
        self, run_id: UUID, key: TrunkKey, request: WireRequest, metadata: Mapping[str, Any]
    ) -> tuple[WireRequest, Route]:
        """A call begins in this context.

        Returns:
            The request as it will be sent, and what of it a branch repeats: never more than the
            orchestrator sends, or the two would be told apart.
        """
        _run.set(run_id)
        own = Route.of(request.headers, request.routing)
        if not self._affinity.active:
            return request, own
        if not metadata.get(MARK):
            self._once.warn(log, "no-session", _NO_SESSION)
            return request, own
        route = self._affinity.route(key.thread, {**metadata, **_configurable()})
        self._expect(run_id, Route(route.headers, {**route.body, **self._told(key, request)}))
        salt = request.fields.get("cache_salt") or route.body.get("cache_salt")
        if salt:  # it is in the hash of every block (facts/vllm.md, "The prefix cache")
            request = replace(request, fields={**request.fields, "cache_salt": salt})
        body = {k: v for k, v in route.body.items() if k != "cache_salt"}
        return request, Route(route.headers, body).under(own)

    def converse(self, run_id: UUID, trunk: Trunk) -> None:
        """The trunk of a call that begins is known: name the conversation that it continues."""
        route = self._sent.get(run_id)
        if route is None or not self._affinity.conversation or trunk.model != self._llm.model_name:
            return
        name = self._conversations.begin(run_id, trunk)
        body = {"conversation_id": name, "return_token_ids": True}
        self._expect(run_id, Route(route.headers, {**route.body, **body}))

    def said(self, answer: Any) -> None:
        """The running call of this context brought an answer, or a piece of it."""
        run_id = _run.get()
        if run_id is not None and self._affinity.conversation:
            shown = answer if isinstance(answer, dict) else answer.model_dump()
            self._conversations.said(run_id, shown)

    def ended(self, run_id: UUID, message: BaseMessage | None) -> None:
        """A call ended, with its answer or (None) with an error."""
        with self._lock:
            sent = self._sent.pop(run_id, None)
        if sent is not None and self._affinity.conversation:
            answer = None if message is None else wire_messages(self._llm, [message])[0]
            self._conversations.ended(run_id, answer)

    def payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The payload with what the running call carries; what it says for itself stays."""
        run_id = _run.get()
        route = self._sent.get(run_id) if run_id is not None else None
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
        """A copy of the model whose requests carry what their calls are to carry.

        The copy is of a subclass, so that it is still what it was to `isinstance`.
        """
        if not self._affinity.active or (llm.metadata or {}).get(MARK):
            return llm
        copy = llm.model_copy(update={"metadata": {**(llm.metadata or {}), MARK: True}})
        base = type(llm)
        if base not in self._classes:  # to make a pydantic class takes milliseconds
            self._classes[base] = _subclass(base, self)
        object.__setattr__(copy, "__class__", self._classes[base])
        return copy

    def _told(self, key: TrunkKey, request: WireRequest) -> dict[str, Any]:
        if self._affinity.hints is None or request.model != self._llm.model_name:
            return {}
        if self._hints.to_ask:
            self._errand(self._hints.find_out)
        resumes = bool(request.tools) and request.tool_choice != "none"
        return self._hints.orchestrator(key, resumes=resumes)

    def _expect(self, run_id: UUID, route: Route) -> None:
        with self._lock:
            self._sent[run_id] = route
            while len(self._sent) > _REMEMBERED:
                self._sent.popitem(last=False)


def _subclass(base: type[M], routing: Routing) -> type[M]:
    def _get_request_payload(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super(made, self)._get_request_payload(*args, **kwargs)
        try:
            return routing.payload(payload)
        except Exception as error:
            log.warning("a request goes without its session: %r", error)
            return payload

    def _create_chat_result(self: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        _heard(response)
        return super(made, self)._create_chat_result(response, *args, **kwargs)

    def _convert_chunk_to_generation_chunk(self: Any, chunk: Any, *args: Any, **kwargs: Any) -> Any:
        _heard(chunk)
        return super(made, self)._convert_chunk_to_generation_chunk(chunk, *args, **kwargs)

    def _heard(answer: Any) -> None:
        try:
            routing.said(answer)
        except Exception as error:
            log.warning("an answer's tokens could not be read: %r", error)

    made: type[Any] = type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "_get_request_payload": _get_request_payload,
            "_create_chat_result": _create_chat_result,
            "_convert_chunk_to_generation_chunk": _convert_chunk_to_generation_chunk,
        },
    )
    return cast("type[M]", made)


def _configurable() -> Mapping[str, Any]:
    """The run's own values: callbacks are shown only a few of them."""
    try:
        return get_config().get("configurable") or {}
    except RuntimeError:  # called outside a graph
        return {}
