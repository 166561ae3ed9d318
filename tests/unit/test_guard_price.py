"""Probing fields and pricing breaks with a real template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.alignment.render_local import LocalRenderer
from langgraph_shadow.alignment.render_server import WireRenderer
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.guard.diagnosis import diagnose
from langgraph_shadow.guard.fields import FieldRules, probe_fields
from langgraph_shadow.guard.price import price
from tests.unit.guard_histories import CHATTY, PLAIN, Words, loop, trunk

if TYPE_CHECKING:
    from langgraph_shadow.alignment.render import Rendering


class Refusing(Words):
    async def render(self, prompt: Prompt) -> Rendering:
        msg = "no"
        raise AlignmentError(msg)


async def test_probe_tells_what_a_template_renders() -> None:
    assert await probe_fields(LocalRenderer(PLAIN), "m") == FieldRules(
        ids=False, names=False, null_content=False, text_parts=False, argument_text=False,
        reasoning=False,
    )  # fmt: skip
    assert await probe_fields(LocalRenderer(CHATTY), "m") == FieldRules(
        ids=True, names=True, null_content=False, text_parts=False, argument_text=False,
        reasoning=True,
    )  # fmt: skip


async def test_probe_knows_nothing_when_nothing_can_be_rendered() -> None:
    assert await probe_fields(Refusing(), "m") == FieldRules()
    assert await probe_fields(WireRenderer(), "m") == FieldRules()


async def test_a_break_is_priced_in_tokens_and_blocks() -> None:
    before, after = trunk(loop(2)), trunk(loop(3, head="You are a lazy agent."))
    report = diagnose(before, after)
    assert report is not None

    priced = await price(report, before, after, Words(), block_size=8)

    assert priced is not None
    assert priced.token == len("<system>You are a ")
    assert priced.block == priced.token // 8
    rendered = await Words().render(Prompt.of(before))
    assert priced.lost_tokens == len(rendered) - len("<assistant>") - priced.block * 8


def _renumbered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    new = [dict(m) for m in messages]
    new[2] = {**new[2], "tool_calls": [{**new[2]["tool_calls"][0], "id": "call_77"}]}
    new[3]["tool_call_id"] = "call_77"
    return new


@pytest.mark.parametrize("renderer", [Words(), LocalRenderer(PLAIN)])
async def test_a_difference_that_does_not_reach_the_prompt_is_dropped(renderer: Any) -> None:
    before, after = trunk(loop(1)), trunk(_renumbered(loop(2)))
    report = diagnose(before, after)
    assert report is not None

    assert await price(report, before, after, renderer, block_size=8) is None


async def test_a_template_that_rewrites_old_turns_does_not_hide_that_nothing_was_lost() -> None:
    last_only = PLAIN.replace("</>", "{% if loop.last %}\n{% endif %}</>")
    before, after = trunk(loop(1)), trunk(_renumbered(loop(2)))
    report = diagnose(before, after)
    assert report is not None

    assert await price(report, before, after, Words(last_only), block_size=8) is None
    assert await price(report, before, after, Words(CHATTY), block_size=8) is not None


async def test_isolation_loses_everything_though_the_text_is_the_same() -> None:
    before, after = trunk(loop(1), cache_salt="a"), trunk(loop(2), cache_salt="b")
    report = diagnose(before, after)
    assert report is not None

    priced = await price(report, before, after, Words(), block_size=8)

    assert priced is not None
    assert (priced.token, priced.block) == (0, 0)
    rendered = await Words().render(Prompt.of(before))
    assert priced.lost_tokens == len(rendered) - len("<assistant>")


@pytest.mark.parametrize("renderer", [Refusing(), WireRenderer(), LocalRenderer(PLAIN)])
async def test_without_tokens_the_report_stays_as_it_is(renderer: Any) -> None:
    before, after = trunk(loop(2)), trunk(loop(3, head="You are a lazy agent."))
    report = diagnose(before, after)
    assert report is not None

    assert await price(report, before, after, renderer, block_size=8) == report
