"""What the block rule says that a branch will find cached, and why a server found less."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from langgraph_shadow.alignment.blocks import predicted_cached
from langgraph_shadow.alignment.ladder import DISTRUST_BLOCKS
from langgraph_shadow.alignment.render import Prompt, Rendering, common
from langgraph_shadow.alignment.session import Aligned
from langgraph_shadow.runner.once import Once
from langgraph_shadow.runner.server import Server
from langgraph_shadow.runner.streaming import Answer
from langgraph_shadow.trunk.model import Trunk

log = logging.getLogger("langgraph_shadow.runner")

AHEAD = "ahead of the orchestrator"
"""A branch that found its orchestrator's request not yet computed, where no stream shows it."""


class Forecast:
    """Predicts the cached tokens of the branches on one trunk, and compares."""

    def __init__(self, trunk: Trunk, server: Server, once: Once) -> None:
        """Predict for branches on this trunk, sent to this server."""
        self._trunk = trunk
        self._server = server
        self._once = once
        self._rendered: list[tuple[Prompt, Rendering]] = []
        self._computed: list[Rendering] = []

    def computed(self, branch: Rendering) -> None:
        """The server has computed this branch's prompt."""
        if branch.unit == "tokens":
            self._computed.append(branch)

    def resident(self) -> tuple[Rendering, ...]:
        """The branches whose prompts the server has computed so far."""
        return tuple(self._computed)

    async def cached(
        self, aligned: Aligned, sent: Iterable[Prompt], resident: Sequence[Rendering]
    ) -> int | None:
        """Tokens that will hit, given what the server was sent; None where they are not counted."""
        if aligned.branch.unit != "tokens" or self._server.block_size is None:
            return None
        held = [await self._render(prompt, aligned) for prompt in sent]
        shared = max((common(aligned.branch, h) for h in (*held, *resident)), default=0)
        return predicted_cached(shared, len(aligned.branch), self._server.block_size)

    def miss(
        self, aligned: Aligned, answer: Answer, *, predicted: int | None, held: int | None
    ) -> str:
        """Why the server found far less than predicted; empty when it did not.

        Args:
            aligned: The branch.
            answer: What the server reported of it.
            predicted: Tokens that were to hit.
            held: Tokens whose blocks the server said it held, where it tells.
        """
        url = self._server.engine.root_url
        if answer.prompt_tokens is not None and answer.cached is None:
            self._once.warn(
                log,
                "no-cached-tokens",
                "the server at %s does not report cached tokens: start vLLM with "
                "--enable-prompt-tokens-details",
                url,
            )
        if predicted is None or answer.cached is None or self._server.block_size is None:
            return ""
        other_prompt = answer.prompt_tokens not in (None, len(aligned.branch))
        if other_prompt:
            self._once.warn(
                log,
                "other-prompt",
                "the server at %s computed a prompt of %s tokens where /tokenize showed %s: does "
                "it run with --exclude-tools-when-tool-choice-none?",
                url,
                answer.prompt_tokens,
                len(aligned.branch),
            )
        if answer.cached >= predicted - DISTRUST_BLOCKS * self._server.block_size:
            return ""
        if other_prompt:
            return "another prompt"
        if held is None:
            return "wrong replica or evicted"
        return "wrong replica" if held > answer.cached else "evicted"

    async def _render(self, prompt: Prompt, aligned: Aligned) -> Rendering:
        if prompt == Prompt.of(self._trunk):
            return aligned.trunk
        for known, rendering in self._rendered:
            if known == prompt:
                return rendering
        rendering = await self._server.renderer.render(prompt)
        self._rendered.append((prompt, rendering))
        return rendering
