"""What the answer to a spliced branch needs, because `/v1/completions` returns raw text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from langgraph_shadow.alignment.carriers import NONCE, find_last, quiet
from langgraph_shadow.alignment.render import (
    Detokenizer,
    Items,
    Prompt,
    Renderer,
    RendererUnavailableError,
)
from langgraph_shadow.errors import AlignmentError

_THINK = re.compile(r"<(/?)(?:\w+:)?think(?:ing)?>|\[(/?)THINK\]", re.IGNORECASE)

_MARKER = re.compile(r"[<\[]\S+[>\]\[]")
"""What an end-of-turn token looks like; plain text would stop ordinary answers."""

_MARK = 4
"""Tokens at the nonce's end by which it is found."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a spliced branch's answer begins and ends.

    Attributes:
        text: The end of the prompt, after the instruction: the assistant's opener.
        stop: Token ids that end an assistant's turn, for `stop_token_ids`; the server's own end
            token stops the answer anyway.
    """

    text: str = ""
    stop: tuple[int, ...] = ()

    @property
    def thinking(self) -> bool:
        """Whether the prompt ends inside a thinking block, so that the answer begins in one."""
        marks = list(_THINK.finditer(self.text))
        return bool(marks) and not any(marks[-1].groups())


async def opening(prompt: Prompt, instruction: str, tail: Items, renderer: Renderer) -> Opening:
    """Read the opener from a branch's tail, and learn the end of turn on a short chat.

    A renderer that cannot give text leaves both empty; so does, for `stop`, a template that
    refuses the short chat or ends a turn with plain text.
    """
    if not isinstance(renderer, Detokenizer):
        return Opening()
    text = (await renderer.text(tail)).rpartition(instruction)[2]
    turn = quiet(
        replace(
            prompt,
            messages=(
                {"role": "user", "content": "Hello."},
                {"role": "assistant", "content": NONCE},
                {"role": "user", "content": "Hello."},
            ),
            tools=(),
            add_generation_prompt=True,
            continue_final_message=False,
        )
    )
    try:
        rendered = (await renderer.render(turn)).items
    except RendererUnavailableError:
        raise
    except AlignmentError:
        return Opening(text=text)
    place = find_last(rendered, (await renderer.tokens(NONCE))[-_MARK:])
    if place is None or isinstance(rendered, str):
        return Opening(text=text)
    # A line break may stand between the content and the end marker.
    for token in rendered[place + _MARK :][:2]:
        if _MARKER.fullmatch((await renderer.text((token,))).strip()):
            return Opening(text=text, stop=(token,))
    return Opening(text=text)
