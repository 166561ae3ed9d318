"""A specialist's tool calls: how the template writes one, which are allowed, what was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from langgraph_shadow.alignment.blocks import common_prefix
from langgraph_shadow.alignment.render import (
    Detokenizer,
    Prompt,
    Renderer,
    RendererUnavailableError,
)
from langgraph_shadow.branches.markers import TURN, after_thinking
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import Message

Calls = Literal["may", "must", "none"]
"""Whether the next reply may be, must be, or cannot be a tool call."""

_NAME = "Zq7Xk2Vw9Jh4"
_ARGUMENT = "Tn8Rb3Mf6Yc1"
_SHORTEST_TRIGGER = 3


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template writes a call: `before`, the name, `between`, the arguments, `after`."""

    before: str = '<tool_call>\n{"name": "'
    between: str = '", "arguments": '
    after: str = "}\n</tool_call>"

    @property
    def trigger(self) -> str:
        """The beginning by which a call is known."""
        first = self.before.split()[0]
        return first if len(first) >= _SHORTEST_TRIGGER else self.before


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call that a reply holds.

    Attributes:
        name: The tool; empty when the call could not be read.
        arguments: Its arguments.
    """

    name: str
    arguments: dict[str, Any]

    @property
    def written(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)


HERMES = CallForm()
"""What is used where the template's own form is no name with a JSON object behind it."""


async def learn_form(prompt: Prompt, renderer: Renderer) -> CallForm:
    """Read from the template's rendering how it writes a tool call."""
    if not isinstance(renderer, Detokenizer) or not prompt.tools:
        return HERMES
    asked: Message = {"role": "user", "content": "Hello."}
    function = {"name": _NAME, "arguments": json.dumps({_ARGUMENT: "x"})}
    call = {"id": "shadow001", "type": "function", "function": function}
    made: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    opened = replace(prompt, messages=(asked,))
    written = replace(prompt, messages=(asked, made), add_generation_prompt=False)
    try:
        before, after = await renderer.render(opened), await renderer.render(written)
        text = await renderer.text(after.items[common_prefix(before.items, after.items) :])
    except RendererUnavailableError:
        raise
    except AlignmentError:
        return HERMES
    return _form_in(text) or HERMES


def _form_in(text: str) -> CallForm | None:
    before, found, rest = (after_thinking(text, thinking_open=False) or "").partition(_NAME)
    begin = rest.find("{")
    if not found or not before.strip() or begin < 0:
        return None
    try:
        arguments, end = json.JSONDecoder().raw_decode(rest, begin)
    except ValueError:
        return None
    if arguments != {_ARGUMENT: "x"}:
        return None
    after = rest[end:]
    turn = TURN.search(after)
    return CallForm(
        before.lstrip(), rest[:begin], (after[: turn.start()] if turn else after).rstrip()
    )


def constraint(form: CallForm, own: Sequence[Message], calls: Calls) -> dict[str, Any]:
    """Request fields that leave the model no other call than one of its own tools.

    Args:
        form: How a call is written.
        own: Schemas of the tools that may be called.
        calls: Whether one may, must or cannot be made.
    """
    tags = [
        {
            "type": "tag",
            "begin": f"{form.before}{function['name']}{form.between}",
            "content": {
                "type": "json_schema",
                "json_schema": function.get("parameters") or {"type": "object"},
                "max_whitespace_cnt": 1,
            },
            "end": form.after,
        }
        for function in (tool["function"] for tool in own)
    ]
    shape: dict[str, Any]
    if calls == "none" or not tags:
        shape = {"type": "any_text", "excludes": [form.trigger]}
    elif calls == "must":
        shape = {"type": "or", "elements": tags}
    else:
        shape = {
            "type": "triggered_tags",
            "triggers": [form.trigger],
            "tags": tags,
            "stop_after_first": True,
        }
    tag = json.dumps({"type": "structural_tag", "format": shape})
    return {"structured_outputs": {"structural_tag": tag}}


def asked_call(text: str, form: CallForm) -> AskedCall | None:
    """The tool call in a reply, or None when it holds none."""
    begin = text.find(form.trigger)
    if begin < 0:
        return None
    spaced = r"\s*".join(map(re.escape, form.before.split()))
    between = r"\s*".join(map(re.escape, form.between.split()))
    found = re.compile(rf"{spaced}\s*([\w.-]+)\s*{between}\s*").match(text, begin)
    if found is None:
        return AskedCall("", {})
    try:
        arguments, _ = json.JSONDecoder().raw_decode(text, found.end())
    except (ValueError, RecursionError):
        return AskedCall("", {})
    return AskedCall(found[1], arguments if isinstance(arguments, dict) else {})


class Prose:
    """Lets a reply's text through as it comes, without thinking, calls and space at its edges."""

    def __init__(self, trigger: str | None, *, thinking_open: bool) -> None:
        """Stop at `trigger`; with `thinking_open` the prompt left a thinking block open."""
        self._trigger = trigger
        self._thinking_open = thinking_open
        self._raw = ""
        self._sent = 0

    def feed(self, piece: str, *, final: bool = False) -> str:
        """Add a piece; returns what may be shown now."""
        self._raw += piece
        shown = after_thinking(self._raw, thinking_open=self._thinking_open)
        if shown is None or (not final and self._may_be_marker(shown)):
            return ""
        shown = self._before_call(shown.lstrip(), final=final).rstrip()
        fresh = shown[self._sent :]
        self._sent = max(self._sent, len(shown))
        return fresh

    @property
    def raw(self) -> str:
        """The reply without its thinking."""
        return after_thinking(self._raw, thinking_open=self._thinking_open) or ""

    def _may_be_marker(self, shown: str) -> bool:
        """Whether the first characters may grow into the marker that opens a thinking block."""
        head = shown.lstrip()
        return not head or (head[0] in "<[◁" and len(head) < len("<seed:thinking>"))

    def _before_call(self, shown: str, *, final: bool) -> str:
        if self._trigger is None:
            return shown
        place = shown.find(self._trigger)
        if place >= 0:
            return shown[:place]
        held = next(
            (n for n in range(len(self._trigger) - 1, 0, -1) if shown.endswith(self._trigger[:n])),
            0,
        )
        return shown if final or not held else shown[:-held]
