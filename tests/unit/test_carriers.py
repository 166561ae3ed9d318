"""Carriers are pure functions; their renderings are checked with the template zoo."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.alignment import carriers
from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.alignment.render_local import LocalRenderer
from langgraph_shadow.alignment.survey import Scenario, trunk
from langgraph_shadow.errors import AlignmentError

ZOO = Path(__file__).parent / "template_zoo"
ASK = 'Anything new? One sentence, or answer "SKIP".'
USER_TURN_IS_SAFE = {
    name: LocalRenderer.from_file(ZOO / f"{name}.jinja", clock=lambda _: "1 January 2026")
    for name in ("plain", "dated")
}


def prompt(scenario: Scenario | None = None) -> Prompt:
    return Prompt.of(trunk(scenario or Scenario(), model="m"))


def ending_with(content: object) -> Prompt:
    base = prompt()
    return base.with_messages([*base.messages[:-1], {**base.messages[-1], "content": content}])


@given(st.sampled_from(sorted(USER_TURN_IS_SAFE)), st.text(), st.text(min_size=1))
def test_nonce_splice_is_the_official_rendering_where_that_is_safe(
    name: str, result: str, instruction: str
) -> None:
    render = USER_TURN_IS_SAFE[name].render_now
    base = ending_with(result)
    marked = carriers.nonced(base)
    spliced = carriers.nonce_splice(
        render(base).items,
        render(marked).items,
        render(carriers.user_turn(marked, instruction)).items,
    )
    assert spliced == render(carriers.user_turn(base, instruction)).items


def test_nonce_splice_keeps_what_a_user_turn_would_erase() -> None:
    render = LocalRenderer.from_file(ZOO / "reasoning_gate.jinja").render_now
    base = prompt()
    head = render(replace(base, add_generation_prompt=False)).items
    marked = carriers.nonced(base)
    official = render(carriers.user_turn(marked, ASK)).items
    spliced = carriers.nonce_splice(render(base).items, render(marked).items, official)
    assert official.count("<think>") == 1
    assert spliced.count("<think>") == head.count("<think>") + 1
    assert spliced == head + f"<|im_start|>user\n{ASK}<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_nonce_splice_refuses_when_the_end_cannot_be_found() -> None:
    with pytest.raises(AlignmentError, match="cannot be found"):
        carriers.nonce_splice("head body tail", f"head {carriers.NONCE} tail", "something else")


def test_neutral_splice_refuses_an_unclean_cut() -> None:
    assert carriers.neutral_splice("a b c", "a b ", "hi!", "hi!more") == "a b more"
    with pytest.raises(AlignmentError, match="clean prefix"):
        carriers.neutral_splice("a b c", "a b ", "hi<end>", "hi<eot>more")
    with pytest.raises(AlignmentError, match="plain addition"):
        carriers.neutral_splice("a b c", "a x", "hi", "hi more")


def test_splices_refuse_images() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    base = ending_with([{"type": "text", "text": "see"}, image])
    for name in ("nonce_splice", "neutral_splice"):
        with pytest.raises(AlignmentError, match="images"):
            carriers.CARRIERS[name].needs(base, ASK, False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("found", f"found\n\n{ASK}"),
        ("", ASK),
        (None, ASK),
        ([{"type": "text", "text": "found"}], f"found\n\n{ASK}"),
    ],
)
def test_tool_append_extends_the_last_result(content: object, expected: str) -> None:
    appended = carriers.tool_append(ending_with(content), ASK)
    text = USER_TURN_IS_SAFE["plain"].render_now(appended).items
    assert isinstance(text, str)
    assert f"<|im_start|>tool\n{expected}<|im_end|>" in text
    assert len(appended.messages) == len(prompt().messages)


def test_tool_append_needs_a_tool_result() -> None:
    with pytest.raises(AlignmentError, match="tool result"):
        carriers.tool_append(carriers.user_turn(prompt(), ASK), ASK)


def test_call_pair_answers_its_own_call() -> None:
    call, result = carriers.call_pair(prompt(), ASK).messages[-2:]
    assert [c["id"] for c in call["tool_calls"]] == [result["tool_call_id"]]
    assert result["content"] == ASK
    assert len(carriers.CALL_ID) == 9
    assert carriers.CALL_ID.isalnum()


def test_prefill_leaves_the_answer_open() -> None:
    opened = carriers.prefill(prompt(), "One sentence for the user:")
    text = USER_TURN_IS_SAFE["plain"].render_now(opened).items
    assert isinstance(text, str)
    assert text.endswith("<|im_start|>assistant\nOne sentence for the user:")


def test_no_carrier_touches_what_it_was_given() -> None:
    base = ending_with([{"type": "text", "text": "found"}])
    before = copy.deepcopy(base)
    for carrier in carriers.CARRIERS.values():
        carrier.needs(base, ASK, True)
    assert base == before


def test_the_tail_alone_may_be_quiet() -> None:
    base = prompt()
    marked, extended = carriers.CARRIERS["nonce_splice"].needs(base, ASK, True)
    assert marked.fields == base.fields
    assert extended.fields["chat_template_kwargs"]["enable_thinking"] is False


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_occurrences_in_ids_agree_with_those_in_text(items: list[int], part: list[int]) -> None:
    def text(ids: list[int]) -> str:
        return "".join(map(str, ids))

    found = carriers.occurrences(tuple(items), tuple(part))
    assert found == carriers.occurrences(text(items), text(part))
    assert carriers.find_last(tuple(items), tuple(part)) == (found[-1] if found else None)


def test_units_cannot_be_joined() -> None:
    with pytest.raises(AlignmentError, match="cannot be joined"):
        carriers.join((1, 2), "text")
