"""One alignment: what has been rendered of a trunk, and the questions asked about it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace

from langgraph_shadow.alignment.answer import Opening, opening
from langgraph_shadow.alignment.carriers import Carrier, closing_items, nonced, occurrences
from langgraph_shadow.alignment.render import (
    Detokenizer,
    Prompt,
    Renderer,
    RendererUnavailableError,
    Rendering,
    common,
)
from langgraph_shadow.errors import AlignmentError

EDGE = 3
"""Tokens at either end of an instruction that may merge with their neighbours."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """A branch that was shown to keep its trunk.

    Attributes:
        carrier: The carrier chosen.
        prompt: What `/v1/chat/completions` gets; None when the branch is spliced.
        items: Token ids for `/v1/completions`; None when the branch is a chat.
        trunk: The trunk with its generation prompt, rendered.
        branch: The branch's whole prompt, rendered.
        kept: Items of the trunk that the branch keeps as its prefix.
        needed: Items of the trunk through the end of its last message (the last tool result).
        opening: Of a spliced branch, what its answer needs: the text that follows the
            instruction, and the token ids that end a turn.
    """

    carrier: str
    prompt: Prompt | None
    items: tuple[int, ...] | None
    trunk: Rendering
    branch: Rendering
    kept: int
    needed: int
    opening: Opening | None = None


class Session:
    """One alignment: the trunk's prompt and what has been rendered of it."""

    def __init__(
        self, prompt: Prompt, instruction: str, renderer: Renderer, known: Rendering | None
    ) -> None:
        self.prompt = prompt
        self.instruction = instruction
        self.renderer = renderer
        self._done: list[tuple[Prompt, Rendering]] = []
        if known is not None:
            self._done.append((prompt, known))

    async def render(self, prompt: Prompt) -> Rendering:
        """Render a prompt once; equality of prompts is cheap, they share their messages."""
        for done, rendering in self._done:
            if done == prompt:
                return rendering
        rendering = await self.renderer.render(prompt)
        self._done.append((prompt, rendering))
        return rendering

    async def trunk(self, closing: int | None) -> tuple[Rendering, int]:
        """The trunk's rendering, and how many of its items are needed."""
        if closing is not None:
            rendered = await self.render(self.prompt)
            return rendered, len(rendered) - closing
        rendered, marked = await asyncio.gather(
            self.render(self.prompt), self._marked(nonced(self.prompt))
        )
        if marked is None:
            # The template dislikes a nonce there; the trunk without its generation prompt is the
            # next best end, a few closing items later than the true one.
            closed = await self.render(replace(self.prompt, add_generation_prompt=False))
            return rendered, common(rendered, closed)
        common(rendered, marked)
        return rendered, len(rendered) - closing_items(rendered.items, marked.items)

    async def _marked(self, prompt: Prompt) -> Rendering | None:
        try:
            return await self.render(prompt)
        except RendererUnavailableError:
            raise
        except AlignmentError:
            return None

    async def attach(
        self, carrier: Carrier, trunk: Rendering, needed: int, *, calm: bool
    ) -> Aligned:
        """Build a branch with one carrier; nothing is proved yet."""
        prompts = carrier.needs(self.prompt, self.instruction, calm)
        rendered = tuple(await asyncio.gather(*(self.render(p) for p in prompts)))
        items = carrier.build(trunk, rendered)
        branch = Rendering(trunk.unit, items, trunk.source)
        spliced = items if carrier.spliced and isinstance(items, tuple) else None
        return Aligned(
            carrier=carrier.name,
            prompt=None if carrier.spliced else prompts[0],
            items=spliced,
            trunk=trunk,
            branch=branch,
            kept=common(trunk, branch),
            needed=needed,
        )

    async def asked(self, aligned: Aligned) -> int:
        """How often the branch holds the instruction beyond what the trunk holds."""
        trunk, branch = aligned.trunk.items, aligned.branch.items
        if isinstance(branch, str) and isinstance(trunk, str):
            return _count(branch, self.instruction) - _count(trunk, self.instruction)
        # Only the end can differ; a little of the kept part is read too, for merged tokens.
        start = max(0, aligned.kept - EDGE)
        ids = await self.renderer.tokens(self.instruction)
        core = ids[EDGE:-EDGE]
        if len(core) > EDGE:
            found = len(occurrences(branch[start:], core)) - len(occurrences(trunk[start:], core))
            if found:
                return found
        if not isinstance(self.renderer, Detokenizer):
            return 0
        now, before = await asyncio.gather(
            self.renderer.text(branch[start:]), self.renderer.text(trunk[start:])
        )
        return _count(now, self.instruction) - _count(before, self.instruction)

    async def complete(self, aligned: Aligned, known: Opening | None) -> Aligned:
        """Add what a spliced branch's answer needs; `known` saves asking again."""
        if aligned.prompt is not None:
            return aligned
        tail = aligned.branch.items[aligned.needed :]
        found = known or await opening(self.prompt, self.instruction, tail, self.renderer)
        return replace(aligned, opening=found)


def _count(text: str, instruction: str) -> int:
    """Occurrences of an instruction, as it stands or as a JSON string holds it."""
    forms = {instruction, *(json.dumps(instruction, ensure_ascii=a)[1:-1] for a in (True, False))}
    return sum(text.count(form) for form in forms)
