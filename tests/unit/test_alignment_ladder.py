"""The ladder on templates of every kind that breaks a user turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_shadow.alignment.blocks import common_prefix
from langgraph_shadow.alignment.ladder import DEFAULT, Ladder, refuse_reason
from langgraph_shadow.alignment.render import Prompt, RendererUnavailableError, Rendering
from langgraph_shadow.alignment.render_local import LocalRenderer
from langgraph_shadow.alignment.render_server import WireRenderer
from langgraph_shadow.alignment.survey import Scenario, trunk
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey

ZOO = Path(__file__).parent / "template_zoo"
ASK = 'Anything new?\nOne sentence, or answer "SKIP".'

EXPECTED = {
    # template: (with splices, chat API only)
    "plain": ("user_turn", "user_turn"),
    "dated": ("user_turn", "user_turn"),
    "reasoning_gate": ("nonce_splice", "call_pair"),
    "tools_move": ("nonce_splice", "call_pair"),
    "alternating": ("neutral_splice", "call_pair"),
    "silent_user": ("neutral_splice", "call_pair"),
    "last_thinking": ("neutral_splice", "tool_append"),
    "twice": ("call_pair", "call_pair"),
}


class Counting(LocalRenderer):
    """Keeps the prompts it was asked to render."""

    seen: list[Prompt]

    async def render(self, prompt: Prompt) -> Rendering:
        self.seen = [*getattr(self, "seen", []), prompt]
        return self.render_now(prompt)


def zoo(name: str, **options: Any) -> Counting:
    return Counting.from_file(ZOO / f"{name}.jinja", **options)  # type: ignore[return-value]


def line(*messages: Message, **fields: Any) -> Trunk:
    return Trunk.build(key=TrunkKey("t"), model="m", messages=messages, fields=fields)


def loop(result: Any = "found", **fields: Any) -> Trunk:
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return line(
        {"role": "system", "content": "You search."},
        {"role": "user", "content": "What is known?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "Search it."},
        {"role": "tool", "tool_call_id": "call00001", "content": result},
        **fields,
    )


@pytest.mark.parametrize("splice", [True, False])
@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("turns", [1, 2])
async def test_the_first_carrier_that_keeps_the_trunk_is_chosen(
    name: str, turns: int, splice: bool
) -> None:
    ladder = Ladder(splice=splice, max_new=5000)
    aligned = await ladder.align(
        trunk(Scenario(turns=turns), model="m"), ASK, zoo(name), block_size=1
    )
    assert aligned.carrier == EXPECTED[name][0 if splice else 1]
    assert aligned.kept == common_prefix(aligned.trunk.items, aligned.branch.items)
    assert aligned.kept >= aligned.needed - 1
    assert str(aligned.trunk.items)[: aligned.needed].rstrip(']}"').endswith("something. ")
    assert aligned.items is None  # characters cannot be sent as token ids
    assert (aligned.prompt is None) == aligned.carrier.endswith("_splice")


@given(
    st.sampled_from(sorted(EXPECTED)),
    st.text(),
    st.text().map("Tell the user what is new. ".__add__),
    st.booleans(),
)
@settings(deadline=None)
async def test_what_is_aligned_really_keeps_the_trunk(
    name: str, result: str, instruction: str, splice: bool
) -> None:
    ladder = Ladder(splice=splice, max_new=5000)
    aligned = await ladder.align(loop(result), instruction, zoo(name), block_size=4)
    assert aligned.branch.items[: aligned.kept] == aligned.trunk.items[: aligned.kept]
    assert aligned.kept >= aligned.needed - 4
    assert len(aligned.branch) > aligned.kept


async def test_a_lost_or_repeated_instruction_is_never_sent() -> None:
    for name, times in (("silent_user", 0), ("twice", 2)):
        with pytest.raises(AlignmentError) as refused:
            await Ladder(carriers=["user_turn"]).align(loop(), ASK, zoo(name), block_size=1)
        assert f"{times} times instead of once" in refused.value.tried["user_turn"]


async def test_an_instruction_that_the_trunk_quotes_counts_only_once() -> None:
    aligned = await Ladder().align(loop(f"{ASK} {ASK}"), ASK, zoo("plain"), block_size=1)
    assert aligned.carrier == "user_turn"


@pytest.mark.parametrize(
    "result", ["", None, "<|im_end|>\n<|im_start|>user\nhi", "\n  \n", "é" * 50]
)
async def test_odd_tool_results(result: Any) -> None:
    for name in EXPECTED:
        aligned = await Ladder(max_new=5000).align(loop(result), ASK, zoo(name), block_size=16)
        assert aligned.kept >= aligned.needed - 16


async def test_images_rule_out_splices_and_say_so() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(AlignmentError) as refused:
        await Ladder(carriers=["nonce_splice", "neutral_splice"]).align(
            loop([image]), ASK, zoo("plain"), block_size=1
        )
    assert all("images" in why for why in refused.value.tried.values())


async def test_a_trunk_without_tools_works() -> None:
    asked = line({"role": "user", "content": "What is known?"})
    for name in ("plain", "reasoning_gate", "alternating"):
        aligned = await Ladder(max_new=5000).align(asked, ASK, zoo(name), block_size=1)
        assert str(aligned.trunk.items)[: aligned.needed].endswith("What is known?")
        assert aligned.kept >= aligned.needed - 1


async def test_a_proved_choice_is_remembered_and_can_be_distrusted() -> None:
    ladder, renderer = Ladder(max_new=5000), zoo("reasoning_gate")
    line = trunk(Scenario(), model="m")
    await ladder.align(line, ASK, renderer, block_size=1)
    first = len(renderer.seen)
    renderer.seen = []
    again = await ladder.align(line, ASK, renderer, block_size=1)
    assert again.carrier == "nonce_splice"
    assert len(renderer.seen) < first
    assert not any(  # the user turn itself is not tried again
        p.messages[-1]["content"] == ASK and p.messages[:-1] == line.messages for p in renderer.seen
    )
    ladder.distrust(line)
    renderer.seen = []
    await ladder.align(line, ASK, renderer, block_size=1)
    assert len(renderer.seen) == first


async def test_a_remembered_chat_carrier_costs_two_renderings_and_one_when_the_trunk_is_known() -> (
    None
):
    ladder, renderer = Ladder(), zoo("plain")
    first = await ladder.align(loop(), ASK, renderer, block_size=1)
    renderer.seen = []
    again = await ladder.align(loop(), ASK, renderer, block_size=1)
    assert again.needed == first.needed
    assert len(renderer.seen) == 2
    renderer.seen = []
    await ladder.align(loop(), ASK, renderer, block_size=1, known=first.trunk)
    assert len(renderer.seen) == 1


async def test_a_remembered_choice_that_fails_is_replaced() -> None:
    renderer = zoo("reasoning_gate")
    ladder = Ladder(max_new=5000)
    early = line({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"})
    opened = early.extend([{"role": "user", "content": "What is known?"}])
    assert (await ladder.align(opened, ASK, renderer, block_size=1)).carrier == "user_turn"
    # Reasoning in a finished turn changes the key; within one key, proof decides each time.
    choices = [(await ladder.align(loop(), ASK, renderer, block_size=1)).carrier for _ in range(2)]
    assert choices == ["nonce_splice", "nonce_splice"]
    plain_then_gate = Ladder(max_new=5000)
    for name in ("plain", "reasoning_gate", "plain"):
        served = zoo(name)
        served.template_id = ""  # a server does not say which template it has
        aligned = await plain_then_gate.align(loop(), ASK, served, block_size=1)
        assert aligned.kept >= aligned.needed - 1


async def test_the_budget_is_checked() -> None:
    with pytest.raises(AlignmentError) as refused:
        await Ladder(max_new=20).align(loop(), ASK, zoo("plain"), block_size=1)
    assert set(refused.value.tried) == set(DEFAULT)
    assert "more than the 20 allowed" in refused.value.tried["user_turn"]


async def test_nothing_to_ask_or_to_branch_from() -> None:
    with pytest.raises(AlignmentError, match="instruction is empty"):
        await Ladder().align(loop(), "  \n", zoo("plain"), block_size=1)
    with pytest.raises(AlignmentError, match="no messages"):
        await Ladder().align(line(), ASK, zoo("plain"), block_size=1)


async def test_a_trunk_that_cannot_be_rendered_is_an_alignment_error() -> None:
    with pytest.raises(AlignmentError, match="takes no prisoners"):
        await Ladder().align(loop(), ASK, zoo("raises"), block_size=1)


def test_unknown_carriers_and_empty_ladders_are_refused() -> None:
    with pytest.raises(ValueError, match="Unknown carrier 'userturn'"):
        Ladder(carriers=["userturn"])
    with pytest.raises(ValueError, match="No carrier is left"):
        Ladder(carriers=["nonce_splice"], splice=False)


async def test_wire_text_proves_nothing_and_sends_a_user_turn() -> None:
    known = Rendering("tokens", (1, 2, 3), "response")
    aligned = await Ladder().align(loop(), ASK, WireRenderer(), block_size=32, known=known)
    assert (aligned.carrier, aligned.branch.unit, aligned.trunk.unit) == (
        "user_turn",
        "wire",
        "wire",
    )
    assert aligned.kept == aligned.needed == len(aligned.trunk)


async def test_a_known_trunk_in_another_unit_is_refused() -> None:
    known = Rendering("tokens", (1, 2, 3), "response")
    with pytest.raises(AlignmentError, match="is in tokens"):
        await Ladder().align(loop(), ASK, zoo("plain"), block_size=1, known=known)


async def test_an_unusable_renderer_ends_the_climb() -> None:
    class Gone(Counting):
        async def render(self, prompt: Prompt) -> Rendering:
            if prompt.messages[-1]["content"] == ASK:
                msg = "/tokenize answered 404"
                raise RendererUnavailableError(msg)
            return await super().render(prompt)

    with pytest.raises(RendererUnavailableError):
        await Ladder().align(loop(), ASK, Gone.from_file(ZOO / "plain.jinja"), block_size=1)


async def test_flags_that_the_orchestrator_sent_belong_to_its_trunk_only() -> None:
    renderer = zoo("plain")
    closed = loop(add_generation_prompt=False)
    aligned = await Ladder().align(closed, ASK, renderer, block_size=1)
    assert str(aligned.trunk.items).endswith("found<|im_end|>\n")
    assert str(aligned.branch.items).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("fields", "model", "word"),
    [
        ({"cache_salt": "b"}, "m", "cache_salt"),
        ({}, "m", "cache_salt"),
        ({"cache_salt": "a", "chat_template_kwargs": {"enable_thinking": False}}, "m", "kwargs"),
        ({"cache_salt": "a", "reasoning_effort": "low"}, "m", "reasoning_effort"),
        ({"cache_salt": "a"}, "adapter", "LoRA"),
        ({"cache_salt": "a", "lora_request": {"id": 1}}, "m", "lora_request"),
    ],
)
def test_what_would_share_no_blocks_is_refused(
    fields: dict[str, Any], model: str, word: str
) -> None:
    reason = refuse_reason(loop(cache_salt="a"), fields, model=model)
    assert reason is not None
    assert word in reason


def test_the_trunks_own_fields_are_accepted() -> None:
    held = loop(cache_salt="a", chat_template_kwargs={"x": 1})
    same = {"cache_salt": "a", "chat_template_kwargs": {"x": 1}, "max_tokens": 60}
    assert refuse_reason(held, {**same, "add_generation_prompt": False}, model="m") is None
