"""One request of a specialist: align the role, predict, send, read what came and what it cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx2
import openai

from langgraph_shadow.alignment.blocks import predicted_cached
from langgraph_shadow.alignment.ladder import DISTRUST_BLOCKS, Aligned
from langgraph_shadow.alignment.render import Prompt, RendererUnavailableError
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.runner.failures import one_line
from langgraph_shadow.runner.sending import send_aligned
from langgraph_shadow.specialists.calls import (
    HERMES,
    AskedCall,
    CallForm,
    Calls,
    Prose,
    asked_call,
    constraint,
    learn_form,
)
from langgraph_shadow.specialists.errors import SpecialistError
from langgraph_shadow.specialists.ledger import HopRow
from langgraph_shadow.trunk.model import Message, Trunk

if TYPE_CHECKING:
    from langgraph_shadow.runner.server import Server
    from langgraph_shadow.runner.streaming import Answer
    from langgraph_shadow.specialists.team import Captured, Team

log = logging.getLogger("langgraph_shadow.specialists")

_ROLE_FIRST = (
    "`langgraph-shadow template` shows what this chat template allows; where it allows nothing, "
    "write an ordinary node with the role as its system prompt"
)


@dataclass(frozen=True, slots=True)
class Hop:
    """What one request is to be.

    Attributes:
        specialist: The specialist's name.
        role: Its role.
        own: Wire schemas of the tools that it may call.
        calls: Whether the reply may, must or cannot be a tool call.
        max_tokens: Longest reply in tokens; None leaves it to the model's own setting.
        turn: Requests of this visit before this one.
        run_id: The run by which the shadow captures it.
    """

    specialist: str
    role: str
    own: tuple[Message, ...]
    calls: Calls
    max_tokens: int | None
    turn: int
    run_id: UUID = field(default_factory=uuid4)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        call: The tool call in it, or None.
        answer: Its usage and timing.
        rest: Text that was held back until the end was known.
    """

    call: AskedCall | None
    answer: Answer
    rest: str


async def run_hop(
    team: Team,
    hop: Hop,
    captured: Captured,
    server: Server,
    *,
    sampling: Mapping[str, Any],
    generated: Sequence[int | None],
    on_text: Callable[[str], None],
) -> Reply:
    """Send a specialist's request and record it in the ledger.

    Args:
        team: The specialists of the shadow.
        hop: What is asked.
        captured: The trunk, and what leads to its blocks.
        server: Where it is sent.
        sampling: The model's own sampling fields; its own `structured_outputs` stay.
        generated: For each message of the trunk, how many tokens were generated for it, if known.
        on_text: Told each piece of the answer's text; empty pieces too, when a token came.

    Raises:
        SpecialistError: No carrier keeps the trunk, or the server failed or refused.
    """
    try:
        await server.find_out(team.once)
        aligned = await _align(team, hop, captured.trunk, server)
        form = await _form(team, captured.trunk, server)
        body = {
            **captured.route.body,
            **(constraint(form, hop.own, hop.calls) if captured.trunk.tools else {}),
            **sampling,
        }
        if hop.max_tokens is not None:
            body["max_tokens"] = hop.max_tokens
        predicted = await _predict(team, aligned, captured, server, generated)
        thinking = aligned.opening is not None and aligned.opening.thinking
        prose = Prose(form.trigger if captured.trunk.tools else None, thinking_open=thinking)

        def piece(text: str) -> bool:
            on_text(prose.feed(text))
            return False

        answer = await send_aligned(
            server.engine,
            captured.trunk,
            aligned,
            body=body,
            headers=captured.route.headers,
            until=piece,
        )
    except AlignmentError as error:
        raise SpecialistError(
            hop.specialist, error.reason.rstrip("."), remedy=_remedy(error)
        ) from error
    except openai.APIStatusError as error:
        problem = f"the server answered {error.status_code}: {one_line(error.message)}"
        remedy = "A 4xx names what is wrong with the request; a 5xx may pass with a retry policy."
        raise SpecialistError(hop.specialist, problem, remedy=remedy) from error
    except (openai.OpenAIError, httpx2.HTTPError, OSError) as error:
        server.restarted()
        problem = f"the server failed or could not be reached: {one_line(error)}"
        remedy = "Is it running? A retry policy of the node sends the request again."
        raise SpecialistError(hop.specialist, problem, remedy=remedy) from error
    if answer.finish_reason is None:  # the client closes the stream of an endless answer
        problem = f"its answer did not end within {len(answer.text)} characters"
        remedy = "Limit it with max_tokens, or ask for less in the role."
        raise SpecialistError(hop.specialist, problem, remedy=remedy)
    call = asked_call(prose.raw, form) if captured.trunk.tools else None
    _record(team, hop, captured.trunk, aligned, answer, predicted, call, server)
    return Reply(call, answer, prose.feed("", final=True))


async def _align(team: Team, hop: Hop, trunk: Trunk, server: Server) -> Aligned:
    try:
        return await team.ladder.align(
            trunk, hop.role, server.renderer, block_size=server.block_size or 1
        )
    except RendererUnavailableError as error:
        server.fall_back_to_wire(error.reason, team.once)
        return await team.ladder.align(trunk, hop.role, server.renderer, block_size=1)


async def _form(team: Team, trunk: Trunk, server: Server) -> CallForm:
    if not trunk.tools:
        return HERMES
    if trunk.model not in team.forms:
        team.forms[trunk.model] = await learn_form(Prompt.of(trunk), server.renderer)
    return team.forms[trunk.model]


async def _predict(
    team: Team,
    aligned: Aligned,
    captured: Captured,
    server: Server,
    generated: Sequence[int | None],
) -> int | None:
    """Tokens that the block rule says will hit; from here to the request nothing is awaited."""
    items = aligned.branch.items
    if aligned.branch.unit != "tokens" or server.block_size is None or isinstance(items, str):
        return None
    trunk = captured.trunk
    salt = f"{trunk.model} {trunk.fields.get('cache_salt') or ''}"
    if captured.before is not None:
        held = await _computed(captured.before, trunk, server, generated)
        team.sent.add(salt, trunk.key.thread, held)
    shared = team.sent.shared(salt, trunk.key.thread, items)
    team.sent.add(salt, trunk.key.thread, items)
    if shared is None:
        return None
    return predicted_cached(shared, len(items), server.block_size)


async def _computed(
    before: Trunk, trunk: Trunk, server: Server, generated: Sequence[int | None]
) -> tuple[int, ...]:
    """The tokens that the orchestrator's newest call left in the cache, its answer's among them.

    The last token that was generated is not computed, so it is not cached either.
    """
    prompt = await server.renderer.render(Prompt.of(before))
    count = len(before.messages)
    answer = generated[count] if trunk.extends(before) and count < len(generated) else None
    if answer is not None and not trunk.messages[count].get("tool_calls"):
        after = await server.renderer.render(Prompt.of(trunk.prefix(count + 1)))
        end = len(prompt) + answer - 1
        if after.items[: len(prompt)] == prompt.items and not isinstance(after.items, str):
            return after.items[:end]
    return prompt.items if not isinstance(prompt.items, str) else ()


def _record(
    team: Team,
    hop: Hop,
    trunk: Trunk,
    aligned: Aligned,
    answer: Answer,
    predicted: int | None,
    call: AskedCall | None,
    server: Server,
) -> None:
    if predicted is not None and answer.cached is not None:
        slack = DISTRUST_BLOCKS * (server.block_size or 0)
        if answer.cached < predicted - slack:
            team.ladder.distrust(trunk)
    team.ledger.add(
        HopRow(
            specialist=hop.specialist,
            thread=trunk.key.thread,
            namespace=trunk.key.namespace,
            turn=hop.turn,
            carrier=aligned.carrier,
            trunk_tokens=aligned.needed if aligned.branch.unit == "tokens" else None,
            prompt_tokens=answer.prompt_tokens,
            predicted=predicted,
            cached=answer.cached,
            generated=answer.generated,
            ttft_ms=answer.ttft_ms,
            total_ms=answer.total_ms,
            called=call.name if call is not None else "",
        )
    )


def _remedy(error: AlignmentError) -> str:
    tried = "; ".join(f"{name}: {why}" for name, why in error.tried.items())
    return f"{_ROLE_FIRST}.{f' Tried: {tried}.' if tried else ''}"
