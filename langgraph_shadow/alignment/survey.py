"""What a chat template does to a branch: a synthetic tool loop, rendered and aligned."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import (
    Detokenizer,
    Prompt,
    Renderer,
    RendererUnavailableError,
    Rendering,
    common,
)
from langgraph_shadow.alignment.render_local import Arguments, LocalRenderer
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from langgraph_shadow.alignment.session import Aligned

INSTRUCTION = (
    "Is there something in the newest tool results that the user would want to know now?\n"
    'If so, say it in one sentence. If not, answer "SKIP".'
)

KNOBS: Mapping[str, Mapping[str, bool]] = {
    "preserve_thinking": {"preserve_thinking": True},
    "truncate_history_thinking=false": {"truncate_history_thinking": False},
    "clear_thinking=false": {"clear_thinking": False},
    "keep_all_reasoning": {"keep_all_reasoning": True},
    "keep_all_think": {"keep_all_think": True},
    "keep_past_thinking": {"keep_past_thinking": True},
}
"""Template arguments that keep earlier reasoning in the prompt (facts/templates.md §4)."""

_ARGUMENTS: tuple[Arguments, ...] = ("object", "string")

BUDGET = 20_000
"""Items a branch may add here. The synthetic trunk is short, and characters are not tokens."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What was found out about one template.

    Attributes:
        template: The file's or the model's name.
        usable: Whether it renders a tool loop: calls, arguments and results all reach the prompt.
        carrier: The carrier chosen in the hardest scenario, or None.
        kept_share: Share (0 to 1) of the trunk that the branch keeps there.
        kept_through_last_tool_result: Whether it does so in every scenario.
        stable_in_loop: Whether each prompt of a tool loop extends the one before it.
        stable_across_turns: Whether the first prompt of a new user turn does.
        knob: The template argument that makes `user_turn` enough where it is not.
        reason: Why the template is not usable or nothing was kept; empty otherwise.
    """

    template: str
    usable: bool
    carrier: str | None = None
    kept_share: float | None = None
    kept_through_last_tool_result: bool = False
    stable_in_loop: bool | None = None
    stable_across_turns: bool | None = None
    knob: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A synthetic trunk: one or two user turns, each with a tool loop.

    Attributes:
        turns: User turns; all but the last one are finished.
        reasoning: Whether assistant messages carry reasoning.
        parallel: Whether some steps call two tools at once.
    """

    turns: int = 2
    reasoning: bool = True
    parallel: bool = True

    def messages(self) -> tuple[Message, ...]:
        """The trunk's messages, ending with the last tool batch's results."""
        found: list[Message] = [{"role": "system", "content": "You are a research agent."}]
        for turn in range(self.turns):
            if turn:
                found.append(self._assistant(f"The answer to question {turn} is forty-two."))
            found.append({"role": "user", "content": f"Question {turn + 1}: what is known?"})
            for step in range(3):
                found.extend(self._step(turn, step))
        return tuple(found)

    def _step(self, turn: int, step: int) -> list[Message]:
        count = 2 if self.parallel and step == 0 else 1
        names = [f"{turn}{step}{i}" for i in range(count)]
        calls = [
            {
                "id": f"call{name:0>5}",
                "type": "function",
                "function": {
                    "name": "search",
                    "arguments": json.dumps({"query": f"query{name}"}),
                },
            }
            for name in names
        ]
        results: list[Message] = [
            {
                "role": "tool",
                "tool_call_id": f"call{name:0>5}",
                "name": "search",
                "content": f"result{name}: " + f"Passage {name} says something. " * 8,
            }
            for name in names
        ]
        return [{**self._assistant(""), "tool_calls": calls}, *results]

    def _assistant(self, content: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning:
            message["reasoning"] = "First I weigh what the passages say about it. " * 3
        return message


SEARCH: Message = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the library.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    },
}


async def survey(
    name: str, make: Callable[[Arguments], Renderer], *, model: str = "template"
) -> Surveyed:
    """Find out what one template does to branches.

    Args:
        name: What to call it in the result.
        make: Makes a renderer that hands tool-call arguments over in the given way.
        model: The served model's name, for a renderer that asks a server.

    Raises:
        RendererUnavailableError: The renderer cannot be used at all.
    """
    found = await usable_variant(make, model=model)
    if isinstance(found, str):
        return Surveyed(template=name, usable=False, reason=found)
    renderer, parallel = found
    return await _surveyed(name, renderer, parallel=parallel, model=model)


async def usable_variant(
    make: Callable[[Arguments], Renderer], *, model: str
) -> tuple[Renderer, bool] | str:
    """The renderer and the use of parallel calls that a template takes, or why it takes none.

    Some templates take a single call at once, some take arguments as text only.
    """
    refused = ""
    for arguments in _ARGUMENTS:
        renderer = make(arguments)
        for parallel in (True, False):
            reason = await unusable(renderer, Scenario(parallel=parallel), model=model)
            if not reason:
                return renderer, parallel
            refused = refused or reason
    return refused


async def file_survey(path: str | Path) -> Surveyed:
    """Survey a template file, in characters.

    Raises:
        AlignmentError: The file cannot be read, or the `templates` extra is missing.
    """
    return await survey(str(path), file_renderers(path))


def file_renderers(path: str | Path) -> Callable[[Arguments], Renderer]:
    """Makes renderers of a template file, on a date that stands still.

    Raises:
        AlignmentError: The file cannot be read, or the `templates` extra is missing.
    """
    template = LocalRenderer.from_file(path).template
    only_thinking = _READS_THINKING.search(template) and not _READS_REASONING.search(template)

    def make(arguments: Arguments) -> Renderer:
        return LocalRenderer(
            template,
            arguments=arguments,
            thinking=bool(only_thinking),
            clock=_DATE.strftime,
        )

    return make


_DATE = date(2026, 1, 2)
_READS_THINKING = re.compile(r"""\.thinking\b|["']thinking["']""")
_READS_REASONING = re.compile(r"""\.reasoning\b|reasoning_content|["']reasoning["']""")


async def unusable(renderer: Renderer, scenario: Scenario, *, model: str) -> str:
    """Why a template cannot carry this tool loop, or "" when it can."""
    prompt = Prompt.of(trunk(scenario, model=model))
    try:
        rendering = await renderer.render(prompt)
    except RendererUnavailableError:
        raise
    except AlignmentError as error:
        return error.reason
    text = str(rendering.items)
    if not isinstance(rendering.items, str) and isinstance(renderer, Detokenizer):
        text = await renderer.text(rendering.items)
    for message in prompt.messages:
        if message["role"] == "tool" and message["content"].split(":")[0] not in text:
            return "the template drops tool results"
        for call in message.get("tool_calls") or ():
            if json.loads(call["function"]["arguments"])["query"] not in text:
                return "the template drops tool calls"
    return ""


def trunk(scenario: Scenario, *, model: str, kwargs: Mapping[str, Any] | None = None) -> Trunk:
    """The scenario as a trunk."""
    return Trunk.build(
        key=TrunkKey(thread="survey"),
        model=model,
        messages=scenario.messages(),
        tools=(SEARCH,),
        fields={"chat_template_kwargs": dict(kwargs)} if kwargs else None,
    )


async def _surveyed(name: str, renderer: Renderer, *, parallel: bool, model: str) -> Surveyed:
    ladder = Ladder(max_new=BUDGET)
    chosen: Aligned | None = None
    reason = ""
    for turns in (1, 2):
        for reasoning in (False, True):
            line = trunk(Scenario(turns, reasoning, parallel), model=model)
            try:
                # The slack is one item: what a block would forgive is not the template's merit.
                chosen = await ladder.align(line, INSTRUCTION, renderer, block_size=1)
            except RendererUnavailableError:
                raise
            except AlignmentError as error:
                chosen, reason = None, reason or error.reason
    hardest = trunk(Scenario(parallel=parallel), model=model)
    knob = None
    if chosen is not None and chosen.carrier != "user_turn":
        knob = await _knob(renderer, Scenario(parallel=parallel), model)
    return Surveyed(
        template=name,
        usable=True,
        carrier=chosen.carrier if chosen else None,
        kept_share=round(chosen.kept / len(chosen.trunk), 4) if chosen else None,
        kept_through_last_tool_result=not reason,
        stable_in_loop=await _stable(renderer, hardest, role="assistant"),
        stable_across_turns=await _stable(renderer, hardest, role="user"),
        knob=knob,
        reason=reason,
    )


async def _knob(renderer: Renderer, scenario: Scenario, model: str) -> str | None:
    for knob, kwargs in KNOBS.items():
        line = trunk(scenario, model=model, kwargs=kwargs)
        ladder = Ladder(carriers=["user_turn"], max_new=BUDGET)
        try:
            await ladder.align(line, INSTRUCTION, renderer, block_size=1)
        except RendererUnavailableError:
            raise
        except AlignmentError:
            continue
        return knob
    return None


async def turns_knob(renderer: Renderer, *, parallel: bool, model: str) -> str | None:
    """The template argument under which a new user turn extends the prompt, or None."""
    for knob, kwargs in KNOBS.items():
        line = trunk(Scenario(parallel=parallel), model=model, kwargs=kwargs)
        if await _stable(renderer, line, role="user"):
            return knob
    return None


async def _stable(renderer: Renderer, line: Trunk, *, role: str) -> bool | None:
    """Whether prompts extend each other, in a loop (`assistant`) or over turns (`user`).

    A prompt ends where an answer begins; what its generation prompt alone adds may differ. None
    when a shorter trunk cannot be rendered.
    """
    starts = [i for i, m in enumerate(line.messages) if m["role"] == "assistant"]
    starts.append(len(line.messages))
    try:
        for here, there in pairwise(starts):
            new_turn = any(m["role"] == "user" for m in line.messages[here:there])
            if new_turn != (role == "user"):
                continue
            before, body = await _body(renderer, line.prefix(here))
            after = await renderer.render(Prompt.of(line.prefix(there)))
            if common(before, after) < body:
                return False
    except RendererUnavailableError:
        raise
    except AlignmentError:
        return None
    return True


async def _body(renderer: Renderer, line: Trunk) -> tuple[Rendering, int]:
    """A prompt and how many of its items are not the generation prompt."""
    prompt = Prompt.of(line)
    opened = await renderer.render(prompt)
    closed = await renderer.render(replace(prompt, add_generation_prompt=False))
    return opened, common(opened, closed)
