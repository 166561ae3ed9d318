"""The ladder: try the carriers in order, prove one on the rendering, remember it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langgraph_shadow.alignment.carriers import CARRIERS, Carrier
from langgraph_shadow.alignment.render import (
    Prompt,
    Renderer,
    RendererUnavailableError,
    Rendering,
)
from langgraph_shadow.alignment.session import Aligned, Session
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import PROMPT_FIELDS, Trunk, canonical, digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langgraph_shadow.alignment.answer import Opening

__all__ = ["DEFAULT", "DISTRUST_BLOCKS", "Aligned", "Ladder", "refuse_reason"]

DEFAULT = tuple(CARRIERS)
"""Every carrier, in order: the user's own turn first, tool output and prefill last."""

REMEMBERED = 256
"""Choices kept at most; a server serves far fewer templates."""


DISTRUST_BLOCKS = 2
"""Blocks by which `cached` may fall short of its prediction before a carrier is proved again."""


@dataclass(frozen=True, slots=True)
class _Choice:
    carrier: str
    closing: int
    opening: Opening | None


class Ladder:
    """Chooses how an instruction is attached to a trunk. Keeps no prompt, only choices."""

    def __init__(
        self, *, carriers: Sequence[str] = DEFAULT, max_new: int = 512, splice: bool = True
    ) -> None:
        """Set up a ladder.

        Args:
            carriers: Names of carriers to try, in order.
            max_new: Items (tokens, with a server) that a branch may add beyond what it keeps.
            splice: Whether spliced carriers may be used; they need `/v1/completions`.

        Raises:
            ValueError: A carrier's name is unknown, or none is left.
        """
        unknown = [name for name in carriers if name not in CARRIERS]
        if unknown:
            msg = f"Unknown carrier {unknown[0]!r}; choose from {', '.join(CARRIERS)}."
            raise ValueError(msg)
        self._carriers = [CARRIERS[n] for n in carriers if splice or not CARRIERS[n].spliced]
        if not self._carriers:
            msg = "No carrier is left to try; allow splicing or name a chat carrier."
            raise ValueError(msg)
        self._max_new = max_new
        self._choices: dict[bytes, _Choice] = {}

    async def align(
        self,
        trunk: Trunk,
        instruction: str,
        renderer: Renderer,
        *,
        block_size: int,
        known: Rendering | None = None,
    ) -> Aligned:
        """Attach an instruction to a trunk and prove that the branch keeps it.

        Args:
            trunk: The trunk.
            instruction: What the branch asks; leading and trailing whitespace is dropped.
            renderer: Shows what the server would see. With a wire renderer the result is a
                `user_turn` that nothing was proved about.
            block_size: The server's KV block size in tokens; the slack that is allowed.
            known: The trunk's rendering, when a response carried its `prompt_token_ids`.

        Raises:
            AlignmentError: No carrier keeps the trunk (`tried` says why for each), or the trunk
                itself cannot be rendered.
            RendererUnavailableError: The renderer cannot be used at all.
        """
        instruction = instruction.strip()
        if not instruction:
            msg = "The instruction is empty; give the branch something to ask."
            raise AlignmentError(msg)
        if not trunk.messages:
            msg = "The trunk has no messages, so there is nothing to branch from."
            raise AlignmentError(msg)
        if renderer.unit == "wire":
            # `known` may be in tokens; wire text cannot be compared with them.
            return await _unproved(Session(_prompt(trunk), instruction, renderer, None))
        if known is not None and known.unit != renderer.unit:
            msg = f"The known trunk is in {known.unit}, the renderer speaks in {renderer.unit}."
            raise AlignmentError(msg)
        session = Session(_prompt(trunk), instruction, renderer, known)
        key = _key(trunk, renderer)
        tried: dict[str, str] = {}
        choice = self._choices.get(key)
        aligned = None
        if choice is not None:
            again = [CARRIERS[choice.carrier]]
            aligned = await self._climb(session, again, tried, block_size, choice.closing)
        if aligned is None:
            aligned = await self._climb(session, self._carriers, tried, block_size, None)
        if aligned is None:
            name, why = list(tried.items())[-1]
            msg = f"No carrier keeps the trunk; the last one tried, {name}, was refused: {why}."
            raise AlignmentError(msg, tried=tried)
        same = choice is not None and choice.carrier == aligned.carrier
        aligned = await session.complete(aligned, choice.opening if choice and same else None)
        closing = len(aligned.trunk) - aligned.needed
        self._remember(key, _Choice(aligned.carrier, closing, aligned.opening))
        return aligned

    async def _climb(
        self,
        session: Session,
        carriers: Sequence[Carrier],
        tried: dict[str, str],
        block_size: int,
        closing: int | None,
    ) -> Aligned | None:
        """The first carrier that is proved; what refused the others goes into `tried`."""
        rendered, needed = await session.trunk(closing)
        for carrier in carriers:
            # A spliced answer comes back raw, so a tail without a thinking block is tried first.
            for calm in (True, False) if carrier.spliced else (False,):
                try:
                    aligned = await session.attach(carrier, rendered, needed, calm=calm)
                    await self._prove(aligned, session, block_size)
                except RendererUnavailableError:
                    raise
                except AlignmentError as refused:
                    tried[carrier.name] = refused.reason
                else:
                    return aligned
        return None

    def distrust(self, trunk: Trunk) -> None:
        """Forget the choice made for trunks like this one, so that the next is proved afresh.

        Called when the server's cached tokens fall short of the prediction by over two blocks.
        """
        head = _key(trunk, None)
        for key in list(self._choices):
            if key.startswith(head):
                self._choices.pop(key, None)

    def _remember(self, key: bytes, choice: _Choice) -> None:
        if len(self._choices) >= REMEMBERED and key not in self._choices:
            self._choices.pop(next(iter(self._choices)), None)
        self._choices[key] = choice

    async def _prove(self, aligned: Aligned, session: Session, block_size: int) -> None:
        """Raise unless the branch keeps enough, adds little, and asks exactly once."""
        unit = aligned.trunk.unit
        if aligned.kept < aligned.needed - block_size:
            msg = (
                f"keeps {aligned.kept} of the {aligned.needed} {unit} through the end of the "
                "trunk's last message"
            )
            raise AlignmentError(msg)
        new = len(aligned.branch) - aligned.kept
        if new > self._max_new:
            msg = f"adds {new} {unit}, more than the {self._max_new} allowed"
            raise AlignmentError(msg)
        asked = await session.asked(aligned)
        if asked != 1:
            msg = f"the instruction is in the rendered branch {asked} times instead of once"
            raise AlignmentError(msg)


async def _unproved(session: Session) -> Aligned:
    trunk = await session.render(session.prompt)
    return await session.attach(CARRIERS["user_turn"], trunk, len(trunk), calm=False)


def refuse_reason(trunk: Trunk, fields: Mapping[str, Any], *, model: str) -> str | None:
    """Why a branch's request would share no blocks with its trunk, or None when it does.

    Args:
        trunk: The trunk.
        fields: The other fields of the branch's request.
        model: The model, or LoRA adapter, that the branch asks.
    """
    if model != trunk.model:
        return (
            f"The branch asks {model!r}, the trunk was computed by {trunk.model!r}: "
            "KV blocks belong to one model and one LoRA adapter."
        )
    for name in PROMPT_FIELDS:
        if name in ("add_generation_prompt", "continue_final_message"):
            continue
        ours, theirs = fields.get(name), trunk.fields.get(name)
        if canonical(ours) != canonical(theirs):
            return (
                f"The branch's {name} differs from the trunk's; it is part of the prompt or of "
                "the block hash. Send the trunk's own."
            )
    return None


def _prompt(trunk: Trunk) -> Prompt:
    """The trunk's prompt; generation flags that the orchestrator sent are kept."""
    fields = dict(trunk.fields)
    return replace(
        Prompt.of(trunk),
        add_generation_prompt=bool(fields.pop("add_generation_prompt", True)),
        continue_final_message=bool(fields.pop("continue_final_message", False)),
        fields=fields,
    )


def _key(trunk: Trunk, renderer: Renderer | None) -> bytes:
    """What decides which carrier works; the template's identity comes last."""
    fields = {k: v for k, v in trunk.fields.items() if k != "cache_salt"}
    last = trunk.messages[-1]["role"] if trunk.messages else ""
    head = digest(b"", [trunk.model, fields, trunk.has_reasoning, bool(trunk.tools), last])
    return head + str(getattr(renderer, "template_id", "")).encode()
