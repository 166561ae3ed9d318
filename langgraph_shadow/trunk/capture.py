"""Capture: from what `on_chat_model_start` shows to a `Trunk`, serialising only what is new."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey
from langgraph_shadow.trunk.wire import WireRequest, wire_messages

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI


@dataclass(frozen=True, slots=True)
class _Seen:
    """The parts of a message that reach the wire, to tell whether it was edited since.

    Strings are kept by reference; the small mutable parts are copied, because an edit in place
    would change both sides of the comparison.
    """

    kind: str
    content: Any
    name: str | None
    extra: dict[str, Any]
    calls: Any

    @classmethod
    def of(cls, message: BaseMessage) -> _Seen:
        content = message.content
        return cls(
            kind=message.type,
            content=content if isinstance(content, str) else copy.deepcopy(content),
            name=message.name,
            extra=copy.deepcopy(message.additional_kwargs),
            calls=copy.deepcopy(_calls(message)),
        )

    def still(self, message: BaseMessage) -> bool:
        return bool(
            self.kind == message.type
            and self.content == message.content
            and self.name == message.name
            and self.extra == message.additional_kwargs
            and self.calls == _calls(message)
        )


def _calls(message: BaseMessage) -> tuple[Any, ...]:
    fields = vars(message)  # asking a pydantic model for a field it lacks takes microseconds
    return tuple(map(fields.get, ("tool_calls", "invalid_tool_calls", "tool_call_id")))


@dataclass(slots=True)
class _Line:
    seen: list[_Seen]
    trunk: Trunk


class Capture:
    """Remembers the last trunk of each line, so that a capture costs O(new messages).

    Thread-safe. Holds references to the last trunk's strings, no copies of messages.
    """

    def __init__(self, *, max_lines: int = 1024) -> None:
        self._lines: OrderedDict[TrunkKey, _Line] = OrderedDict()
        self._max_lines = max_lines
        self._lock = threading.Lock()

    def trunk(
        self,
        llm: BaseChatOpenAI,
        messages: Sequence[BaseMessage],
        request: WireRequest,
        key: TrunkKey,
    ) -> Trunk:
        """Build the trunk of one model call.

        Args:
            llm: A model whose serialiser puts messages in wire form.
            messages: The final messages of the call; never mutated.
            request: The call's request fields.
            key: The line that the call belongs to.

        Raises:
            AlignmentError: The messages have no chat-completions wire form.
        """
        with self._lock:
            line = self._lines.get(key)
        empty = Trunk.build(
            key=key, model=request.model, messages=(), tools=request.tools, fields=request.fields
        )
        if line is None:
            trunk = empty.extend(wire_messages(llm, messages), exact=True)
            seen = [_Seen.of(m) for m in messages]
        else:
            kept = _unchanged(line.seen, messages)
            fresh = wire_messages(llm, messages[kept:]) if kept < len(messages) else ()
            trunk = _continue(line.trunk, empty, kept, fresh)
            seen = [*line.seen[:kept], *(_Seen.of(m) for m in messages[kept:])]
        with self._lock:
            self._lines[key] = _Line(seen=seen, trunk=trunk)
            self._lines.move_to_end(key)
            while len(self._lines) > self._max_lines:
                self._lines.popitem(last=False)
        return trunk

    def beside(self, key: TrunkKey) -> tuple[Trunk, ...]:
        """The newest trunks of the other nodes of a history, the newest one last."""
        with self._lock:
            return tuple(
                line.trunk
                for other, line in self._lines.items()
                if (other.thread, other.namespace) == (key.thread, key.namespace) and other != key
            )

    def forget(self, thread: str) -> None:
        """Drop every line of a thread."""
        with self._lock:
            for key in [k for k in self._lines if k.thread == thread]:
                del self._lines[key]


def _unchanged(seen: Sequence[_Seen], messages: Sequence[BaseMessage]) -> int:
    count = 0
    for before, message in zip(seen, messages, strict=False):
        if not before.still(message):
            break
        count += 1
    return count


def _continue(before: Trunk, empty: Trunk, kept: int, fresh: Sequence[Message]) -> Trunk:
    """Append `fresh` to the `kept` messages of `before`, under the head of `empty`."""
    if before.digests[0] == empty.digests[0]:
        return before.prefix(kept).extend(fresh, exact=True)
    return empty.extend((*before.messages[:kept], *fresh), exact=True)
