"""The diagnosis by itself: reports, excerpts, and input that no serialiser would write."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_shadow.guard.diagnosis import compare, diagnose
from langgraph_shadow.guard.fields import FieldRules
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.masks import Change, volatile_changes
from langgraph_shadow.guard.report import REPAIRS, Kind
from tests.unit.guard_histories import calls, loop, result, trunk

_KEYS = st.sampled_from(
    ("role", "content", "tool_calls", "tool_call_id", "id", "function", "arguments", "name", "type")
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=8,
)
_MESSAGES: Any = st.lists(st.dictionaries(_KEYS, _JSON, max_size=5) | _JSON, max_size=5)


@settings(deadline=None)
@given(_MESSAGES, _MESSAGES, st.sampled_from((None, True, False)))
def test_any_input_gives_a_report_or_none(before: Any, after: Any, known: bool | None) -> None:
    rules = FieldRules(known, known, known, known, known, known)

    found = diagnose(trunk(before, tools=before), trunk(after, tools=after), rules)

    assert found is None or (found.kind in REPAIRS and 0 <= found.lost_share <= 1)
    guard = Guard(mode="observe")
    guard.check(trunk(before))
    guard.check(trunk(after))


@settings(deadline=None)
@given(_MESSAGES, _MESSAGES)
def test_a_trunk_never_breaks_itself_or_what_it_extends(before: Any, more: Any) -> None:
    assert diagnose(trunk(before), trunk(before)) is None
    assert diagnose(trunk(before), trunk(before).extend(more)) is None


def test_every_kind_has_a_repair() -> None:
    assert set(REPAIRS) == set(get_args(Kind))
    assert all(repair.endswith(".") for repair in REPAIRS.values())


def test_the_report_names_field_and_character_and_shows_only_the_difference() -> None:
    secret = "The password is swordfish. " * 20
    heads = [f"{secret}It is 12:00:0{n} now. {secret}" for n in (1, 2)]

    found = diagnose(*(trunk(loop(2, head=head)) for head in heads))

    assert found is not None
    assert found.path == "messages[0].content"
    assert heads[0][found.offset] == "1"
    assert (found.before, found.after) == ("12:00:01", "12:00:02")
    assert "swordfish" not in found.message()


def test_a_long_difference_is_cut_short() -> None:
    before, after = loop(1), loop(2)
    after[3] = result("call_0", "x" * 500)

    found = diagnose(trunk(before), trunk(after))

    assert found is not None
    assert len(found.after) <= 41


def test_the_lost_share_counts_from_the_break_on() -> None:
    before = loop(4)
    late, early = [*before], [*before]
    late[-1], early[1] = result("call_3", "changed"), {**early[1], "content": "changed"}

    shares = []
    for after in (late, early):
        found = diagnose(trunk(before), trunk([*after, calls("x"), result("x")]))
        assert found is not None
        shares.append(found.lost_share)

    assert 0 < shares[0] < 0.15
    assert shares[1] > 0.4


def test_arguments_and_ids_have_their_own_paths() -> None:
    before, after = loop(2), loop(3)
    after[2] = calls("call_0", query="call_0", limit=6)

    found = diagnose(trunk(before), trunk(after))

    assert found is not None
    assert found.path == "messages[2].tool_calls[0].function.arguments"
    assert found.kind == "edited"


def test_a_thinking_block_cut_from_the_text_is_reasoning() -> None:
    before, after = loop(2), loop(3)
    before[2]["content"] = "<think>ice?</think>\nLet me look."
    after[2]["content"] = "Let me look."

    found = diagnose(trunk(before), trunk(after))

    assert found is not None
    assert found.kind == "reasoning"


@pytest.mark.parametrize(
    ("rules", "change"),
    [
        (FieldRules(null_content=True), {"content": None}),
        (FieldRules(text_parts=True), {"content": [{"type": "text", "text": ""}]}),
    ],
)
def test_fields_that_a_template_does_render_are_breaks(
    rules: FieldRules, change: dict[str, Any]
) -> None:
    before, after = loop(1), loop(2)
    after[2] = {**after[2], **change}

    found = diagnose(trunk(before), trunk(after), rules)

    assert found is not None
    assert found.kind == "serialisation"


@pytest.mark.parametrize(
    ("rules", "change"),
    [
        (FieldRules(reasoning=False), {"reasoning": "ice?"}),
        (FieldRules(names=False), {"name": "bot"}),
        (FieldRules(argument_text=False), calls("call_0")),
    ],
)
def test_fields_that_a_template_does_not_render_are_none(
    rules: FieldRules, change: dict[str, Any]
) -> None:
    before, after = loop(1), loop(2)
    after[2] = {**after[2], **change}
    function = after[2]["tool_calls"][0]["function"]
    tight = {**function, "arguments": function["arguments"].replace(" ", "")}
    after[2]["tool_calls"] = [{**after[2]["tool_calls"][0], "function": tight}]
    if rules.argument_text is None:
        after[2]["tool_calls"] = before[2]["tool_calls"]

    assert diagnose(trunk(before), trunk(after), rules) is None
    assert diagnose(trunk(before), trunk(after)) is not None


def test_a_message_list_that_cannot_be_read_is_unknown() -> None:
    class Odd(dict[str, Any]):
        def get(self, *_args: Any) -> Any:
            raise RuntimeError

    before, after = loop(1), loop(2)
    after[2] = Odd(after[2], content="other")

    found = compare(trunk(before), trunk(after))

    assert found is not None
    assert found.kind == "unknown"


def test_work_on_long_texts_is_linear() -> None:
    # Shapes that make a careless pattern backtrack; a quadratic one would not end here.
    for piece in ("1", "12 ", "a1-", "May 1 at ", "1:", "2026-01-", "1 de "):
        text = piece * (48_000 // len(piece))

        assert volatile_changes("x" + text + "y", "z" + text + "w") is None
    huge = "12:00 " * 500_000
    assert volatile_changes("1:00 " + huge + "1:00", "2:00 " + huge + "2:00") is None


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("It is 09:59 AM.", "It is 10:00 AM.", [Change("clock", "09:59 AM", "10:00 AM")]),
        ("same", "same", []),
        (
            "Monday, 1 June 2026; req_8f3kd02ma1",
            "Tuesday, 2 June 2026; req_1b9xk77qz4",
            [
                Change("clock", "Monday, 1 June 2026", "Tuesday, 2 June 2026"),
                Change("identifier", "req_8f3kd02ma1", "req_1b9xk77qz4"),
            ],
        ),
    ],
)
def test_what_changed_is_told_apart(before: str, after: str, changes: list[Change]) -> None:
    assert volatile_changes(before, after) == tuple(changes)
