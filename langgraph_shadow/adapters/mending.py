"""Repair at the wire: what the stabiliser mends is what the model's client really sends."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from langchain_openai.chat_models.base import BaseChatOpenAI

from langgraph_shadow.guard.repair import Repair, Stabiliser
from langgraph_shadow.trunk.model import Trunk, TrunkKey
from langgraph_shadow.trunk.wire import wire_request

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

log = logging.getLogger("langgraph_shadow.guard")

M = TypeVar("M", bound=BaseChatOpenAI)

MARK = "langgraph_shadow_stabilised"
"""Metadata key by which a stabilised model's calls are known."""

_REMEMBERED = 256
_ANY = TrunkKey("")


class Mending:
    """Joins the callback, which knows the thread, with the payload, which is what leaves.

    The callback comes first and shows what the graph asked for; its repaired form is kept by
    fingerprint until the payload of the same call is made.
    """

    def __init__(self, *, max_lines: int) -> None:
        self._stabiliser = Stabiliser(max_lines=max_lines)
        self._mended: OrderedDict[bytes, Trunk] = OrderedDict()
        self._streamed: OrderedDict[UUID, dict[int, tuple[str, str]]] = OrderedDict()
        self._own_text: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def repair(self, trunk: Trunk) -> tuple[Trunk, tuple[Repair, ...]]:
        """The trunk that will be sent in place of this one, and what was mended."""
        mended, repairs = self._stabiliser.repair(trunk)
        with self._lock:
            self._mended[trunk.digests[-1]] = mended
            _bound(self._mended)
        return mended, repairs

    def payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The payload to send in place of this one; the same when nothing is known of it."""
        request = wire_request(payload)
        given = Trunk.build(
            key=_ANY,
            model=request.model,
            messages=payload.get("messages") or (),
            tools=request.tools,
            fields=request.fields,
        )
        mended = self._mended.get(given.digests[-1])
        if mended is None or mended.digests[-1] == given.digests[-1]:
            return payload
        changed = {**payload, "messages": [dict(m) for m in mended.messages]}
        if mended.tools:
            changed["tools"] = [dict(t) for t in mended.tools]
        return changed

    def saw_result(self, response: Mapping[str, Any]) -> None:
        """An answer came in one piece: remember the text of its tool calls' arguments."""
        for answer in response.get("choices") or ():
            for call in (answer.get("message") or {}).get("tool_calls") or ():
                self._remember(str(call.get("id")), str(call["function"]["arguments"]))

    def saw_chunk(self, run_id: UUID, message: BaseMessage) -> None:
        """A piece of an answer came: gather the text of its tool calls' arguments."""
        for piece in getattr(message, "tool_call_chunks", None) or ():
            with self._lock:
                calls = self._streamed.setdefault(run_id, {})
                _bound(self._streamed)
                call_id, text = calls.get(piece.get("index") or 0, ("", ""))
                calls[piece.get("index") or 0] = (
                    call_id or piece.get("id") or "",
                    text + (piece.get("args") or ""),
                )

    def ended(self, run_id: UUID, thread: str, message: BaseMessage | None) -> None:
        """A call ended: what its arguments looked like is now known for its thread."""
        for call_id, text in (self._streamed.pop(run_id, None) or {}).values():
            self._remember(call_id, text)
        ids = [str(c["id"]) for c in getattr(message, "tool_calls", None) or ()]
        known = {i: self._own_text.pop(i) for i in ids if i in self._own_text}
        if known:
            self._stabiliser.remember_arguments(thread, known)

    def _remember(self, call_id: str, text: str) -> None:
        with self._lock:
            self._own_text[call_id] = text
            _bound(self._own_text)


def stabilised(llm: M, mending: Mending) -> M:
    """A copy of the model whose payloads are mended before they are sent.

    The copy is of a subclass, so that it is still what it was to `isinstance`.
    """
    if (llm.metadata or {}).get(MARK):
        return llm
    copy = llm.model_copy(update={"metadata": {**(llm.metadata or {}), MARK: True}})
    object.__setattr__(copy, "__class__", _subclass(type(llm), mending))
    return copy


def _subclass(base: type[M], mending: Mending) -> type[M]:
    def _get_request_payload(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super(made, self)._get_request_payload(*args, **kwargs)
        return _safely(lambda: mending.payload(payload), payload)

    def _create_chat_result(self: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        shown = response if isinstance(response, dict) else response.model_dump()
        _safely(lambda: mending.saw_result(shown), None)
        return super(made, self)._create_chat_result(response, *args, **kwargs)

    made: type[Any] = type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "_get_request_payload": _get_request_payload,
            "_create_chat_result": _create_chat_result,
        },
    )
    return cast("type[M]", made)


T = TypeVar("T")


def _safely(work: Callable[[], T], otherwise: T) -> T:
    try:
        return work()
    except Exception as error:
        log.warning("a repair was left out: %r", error)
        return otherwise


def _bound(items: OrderedDict[Any, Any]) -> None:
    while len(items) > _REMEMBERED:
        items.popitem(last=False)
