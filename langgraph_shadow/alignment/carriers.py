"""The carriers: how an instruction is attached to a trunk. Each one is a pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langgraph_shadow.alignment.blocks import common_prefix
from langgraph_shadow.errors import AlignmentError

if TYPE_CHECKING:
    from langgraph_shadow.alignment.render import Items, Prompt, Rendering
    from langgraph_shadow.trunk.model import Message

NONCE = "Zq7Xk2Vw9Jh4Tn8Rb3Mf6Yc1Ld5Gs0Pt"
"""Stands in for the last message's content to find where it ends; alphanumeric, so that no
template escapes it and no tokenizer merges it with a marker."""

MARK = 8
"""Items at the nonce's end by which it is found again in another rendering."""

CALL_ID = "shadow001"
"""Nine alphanumeric characters: Mistral's templates take no other tool call id."""

CALL_NAME = "instruction"

QUIET = {"enable_thinking": False, "thinking": False}
"""Template arguments that ask for the tail without a thinking block, under either name."""


def user_turn(prompt: Prompt, instruction: str) -> Prompt:
    """The instruction as one more user message: the official rendering."""
    return _asking(prompt, *prompt.messages, {"role": "user", "content": instruction})


def call_pair(prompt: Prompt, instruction: str) -> Prompt:
    """The instruction as the result of one more tool call that the assistant seems to have made."""
    call = {
        "id": CALL_ID,
        "type": "function",
        "function": {"name": CALL_NAME, "arguments": "{}"},
    }
    result = {
        "role": "tool",
        "tool_call_id": CALL_ID,
        "name": CALL_NAME,
        "content": instruction,
    }
    made = {"role": "assistant", "content": "", "tool_calls": [call]}
    return _asking(prompt, *prompt.messages, made, result)


def tool_append(prompt: Prompt, instruction: str) -> Prompt:
    """The instruction at the end of the last tool result.

    Raises:
        AlignmentError: The trunk does not end with a tool result.
    """
    last = prompt.messages[-1]
    if last["role"] != "tool":
        msg = "the trunk does not end with a tool result"
        raise AlignmentError(msg)
    content = last.get("content")
    if not content:
        content = instruction
    elif isinstance(content, str):
        content = f"{content}\n\n{instruction}"
    else:
        content = [*content, {"type": "text", "text": f"\n{instruction}"}]
    return _asking(prompt, *prompt.messages[:-1], {**last, "content": content})


def prefill(prompt: Prompt, instruction: str) -> Prompt:
    """The instruction as the beginning of the assistant's own answer, left open."""
    begun = _asking(prompt, *prompt.messages, {"role": "assistant", "content": instruction})
    return replace(begun, add_generation_prompt=False, continue_final_message=True)


def _asking(prompt: Prompt, *messages: Message) -> Prompt:
    """The prompt with other messages and an answer to come, whatever the trunk itself asked for."""
    return replace(
        prompt, messages=messages, add_generation_prompt=True, continue_final_message=False
    )


def nonced(prompt: Prompt) -> Prompt:
    """The prompt with its last message's content replaced by the nonce."""
    last = {**prompt.messages[-1], "content": NONCE}
    return prompt.with_messages([*prompt.messages[:-1], last])


def quiet(prompt: Prompt) -> Prompt:
    """The prompt with thinking switched off. Only ever used for a tail that is spliced on."""
    kwargs = {**(prompt.fields.get("chat_template_kwargs") or {}), **QUIET}
    return replace(prompt, fields={**prompt.fields, "chat_template_kwargs": kwargs})


def nonce_splice(trunk: Items, marked: Items, extended: Items) -> Items:
    """The official user-turn tail on the trunk's own items.

    Equals the user turn's own rendering wherever that one keeps the trunk (facts/templates.md §5).

    Args:
        trunk: The trunk, rendered.
        marked: The trunk with the nonce, rendered.
        extended: The trunk with the nonce and the user turn, rendered.

    Raises:
        AlignmentError: The nonce cannot be found, so there is no place to cut.
    """
    closing = closing_items(trunk, marked)
    head = len(marked) - closing
    region = head - common_prefix(trunk, marked)
    mark = marked[head - min(MARK, region) : head]
    place = find_last(extended, mark) if len(mark) >= MARK // 2 else None
    if place is None:
        msg = "the end of the last message cannot be found in the user turn's rendering"
        raise AlignmentError(msg)
    return join(trunk[: len(trunk) - closing], extended[place + len(mark) :])


def neutral_splice(trunk: Items, closed: Items, chat: Items, extended: Items) -> Items:
    """A user turn learnt on a neutral chat, on the trunk's own items.

    Args:
        trunk: The trunk, rendered.
        closed: The trunk without generation prompt.
        chat: A short neutral chat without tools and generation prompt.
        extended: The same chat with the user turn.

    Raises:
        AlignmentError: One of the cuts is not clean; a character difference could then split a
            special token or repeat a wrong terminator.
    """
    if trunk[: len(closed)] != closed:
        msg = "the generation prompt is not a plain addition to the trunk"
        raise AlignmentError(msg)
    if not chat or extended[: len(chat)] != chat:
        msg = "a neutral chat is not a clean prefix of the same chat with a user turn"
        raise AlignmentError(msg)
    return join(closed, extended[len(chat) :])


def closing_items(trunk: Items, marked: Items) -> int:
    """Items of the trunk after its last message's content: those it shares with `marked`."""
    return common_prefix(trunk[::-1], marked[::-1])


def join(head: Items, tail: Items) -> Items:
    """Concatenate items of one unit."""
    if isinstance(head, str) and isinstance(tail, str):
        return head + tail
    if isinstance(head, tuple) and isinstance(tail, tuple):
        return head + tail
    msg = "Token ids and characters cannot be joined."
    raise AlignmentError(msg)


def find_last(items: Items, part: Items) -> int | None:
    """Where `part` occurs last in `items`."""
    places = occurrences(items, part)
    return places[-1] if places else None


def occurrences(items: Items, part: Items) -> list[int]:
    """Every place where `part` occurs in `items`."""
    places: list[int] = []
    if not part:
        return places
    whole: Any = items
    first: Any = part if isinstance(part, str) else part[0]
    place = -1
    while True:
        try:
            place = whole.index(first, place + 1)
        except ValueError:
            return places
        if items[place : place + len(part)] == part:
            places.append(place)


@dataclass(frozen=True, slots=True)
class Carrier:
    """One rung of the ladder.

    Attributes:
        name: The carrier's name.
        spliced: Whether the branch is a sequence of token ids rather than a chat.
        needs: The prompts to render, from the trunk's prompt, the instruction, and whether the tail
            should be the one without a thinking block (spliced carriers only).
        build: The branch's items, from the trunk's rendering and those of `needs`.
    """

    name: str
    spliced: bool
    needs: Callable[[Prompt, str, bool], tuple[Prompt, ...]]
    build: Callable[[Rendering, tuple[Rendering, ...]], Items]


def _chat(name: str, attach: Callable[[Prompt, str], Prompt]) -> Carrier:
    return Carrier(
        name=name,
        spliced=False,
        needs=lambda prompt, instruction, _: (attach(prompt, instruction),),
        build=lambda _, rendered: rendered[0].items,
    )


def _text_only(prompt: Prompt) -> None:
    for message in prompt.messages:
        content = message.get("content")
        if isinstance(content, (list, tuple)) and any(
            isinstance(p, Mapping) and p.get("type") not in ("text", "refusal") for p in content
        ):
            msg = "the trunk holds images or other parts that token ids cannot carry"
            raise AlignmentError(msg)


def _nonce_needs(prompt: Prompt, instruction: str, calm: bool) -> tuple[Prompt, ...]:
    _text_only(prompt)
    marked = nonced(prompt)
    extended = user_turn(marked, instruction)
    return marked, quiet(extended) if calm else extended


def _neutral_needs(prompt: Prompt, instruction: str, calm: bool) -> tuple[Prompt, ...]:
    _text_only(prompt)
    chat = replace(
        quiet(prompt) if calm else prompt,
        messages=(
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hello."},
        ),
        # With tools, templates that put them before the newest user message would repeat them.
        tools=(),
        add_generation_prompt=False,
    )
    return replace(prompt, add_generation_prompt=False), chat, user_turn(chat, instruction)


CARRIERS: Mapping[str, Carrier] = {
    carrier.name: carrier
    for carrier in (
        _chat("user_turn", user_turn),
        Carrier(
            name="nonce_splice",
            spliced=True,
            needs=_nonce_needs,
            build=lambda trunk, r: nonce_splice(trunk.items, r[0].items, r[1].items),
        ),
        Carrier(
            name="neutral_splice",
            spliced=True,
            needs=_neutral_needs,
            build=lambda trunk, r: neutral_splice(trunk.items, r[0].items, r[1].items, r[2].items),
        ),
        _chat("call_pair", call_pair),
        _chat("tool_append", tool_append),
        _chat("prefill", prefill),
    )
}
"""Every carrier, in the ladder's order (facts/templates.md §5)."""
