"""What the answer to a spliced branch needs, because `/v1/completions` returns raw text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from langgraph_shadow.alignment.carriers import NONCE, occurrences, quiet
from langgraph_shadow.alignment.render import Detokenizer, Items, Prompt, Renderer
from langgraph_shadow.errors import AlignmentError

_THINK = re.compile(r"<(/?)(?:\w+:)?think(?:ing)?>|\[(/?)THINK\]", re.IGNORECASE)


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

    A template that refuses the short chat leaves `stop` empty.
    """
    text = ""
    if isinstance(renderer, Detokenizer):
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
    except AlignmentError:
        return Opening(text=text)
    mark = (await renderer.tokens(NONCE))[-4:]
    places = occurrences(rendered, mark)
    if not places or isinstance(rendered, str):
        return Opening(text=text)
    return Opening(text=text, stop=rendered[places[-1] + len(mark) :][:1])
