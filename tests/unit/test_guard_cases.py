"""The guard against recorded cases, real trajectories, and histories of any shape."""

from __future__ import annotations

import copy
import json
import unicodedata
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_shadow.guard.diagnosis import diagnose
from langgraph_shadow.guard.guard import Guard
from tests.unit.guard_histories import (
    KEY,
    TOOLS,
    calls,
    histories,
    loop,
    model_calls,
    result,
    system,
    trunk,
)

if TYPE_CHECKING:
    from langgraph_shadow.guard.report import Kind, Report
    from langgraph_shadow.trunk.model import TrunkKey

DATA = Path(__file__).resolve().parents[2] / "../shared/data"


def lines(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def replay(requests: list[dict[str, Any]], key: TrunkKey = KEY) -> list[Report]:
    guard = Guard(mode="observe")
    found = [guard.check(trunk(r["messages"], key=key, **_rest(r))) for r in requests]
    return [report for report in found if report is not None]


def _rest(request: dict[str, Any]) -> dict[str, Any]:
    return {"tools": (), **{k: v for k, v in request.items() if k != "messages"}}


@pytest.mark.parametrize("case", lines("guard_cases.jsonl"), ids=lambda case: case["name"])
def test_recorded_case(case: dict[str, Any]) -> None:
    found = replay(case["requests"])

    assert [report.kind for report in found] == ([case["kind"]] if case["expect_break"] else [])


def test_real_trajectories_are_append_only() -> None:
    trajectories = lines("tau_airline_40.jsonl")
    if not trajectories:
        pytest.skip("tau_airline_40.jsonl is not there")
    tools = json.loads((DATA / "tau_airline_tools.json").read_text(encoding="utf-8"))
    for trajectory in trajectories:
        requests = [{"messages": m, "tools": tools} for m in model_calls(trajectory["messages"])]

        assert replay(requests) == []


@settings(deadline=None)
@given(histories())
def test_append_only_is_never_a_break(history: list[dict[str, Any]]) -> None:
    assert replay([{"messages": m} for m in model_calls(history)]) == []


@settings(deadline=None)
@given(histories(), st.data())
def test_time_travel_and_forks_are_never_a_break(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    requests = model_calls(history)
    back = data.draw(st.sampled_from(requests))
    again = data.draw(st.booleans())
    fork = [*back, calls("other_call", query="elsewhere"), result("other_call", "something else")]

    visited = [*requests, back, fork] if again else [*requests, fork]

    assert replay([{"messages": m} for m in visited]) == []


MUTATIONS: dict[str, Kind] = {
    "edit": "edited",
    "clear": "edited",
    "remove": "removed",
    "window": "removed",
    "insert": "inserted",
    "swap": "reordered",
    "summarise": "summarised",
    "strip": "serialisation",
    "unicode": "serialisation",
    "arguments": "serialisation",
    "ids": "identifier",
    "reasoning": "reasoning",
}


def mutate(name: str, messages: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    """A copy of the messages, changed at the step that starts at index `at`."""
    new = copy.deepcopy(messages)
    call, found = new[at], new[at + 1]
    match name:
        case "edit":
            found["content"] = "something else entirely"
        case "clear":
            found["content"] = "[cleared]"
        case "remove":
            del new[at + 1]
        case "window":
            del new[1 : at + 2]
        case "insert":
            new.insert(at, {"role": "user", "content": "Remember: the person likes maps."})
        case "swap":
            new[at : at + 2], new[at + 2 : at + 4] = new[at + 2 : at + 4], new[at : at + 2]
        case "summarise":
            new[1 : at + 2] = [{"role": "user", "content": "Summary of it all: ice melts."}]
        case "strip":
            found["content"] = found["content"].strip()
        case "unicode":
            found["content"] = unicodedata.normalize("NFC", found["content"])
        case "arguments":
            function = call["tool_calls"][0]["function"]
            reversed_keys = dict(reversed(json.loads(function["arguments"]).items()))
            function["arguments"] = json.dumps(reversed_keys)
        case "ids":
            for message in new:
                for tool_call in message.get("tool_calls", ()):
                    tool_call["id"] += "9"
                if "tool_call_id" in message:
                    message["tool_call_id"] += "9"
        case "reasoning":
            del call["reasoning"]
    return new


@settings(deadline=None)
@given(steps=st.integers(2, 6), data=st.data(), words=st.text(max_size=200), later=st.booleans())
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_found_and_named(
    name: str, steps: int, data: st.DataObject, words: str, later: bool
) -> None:
    messages = loop(steps)
    for i, message in enumerate(messages[2:], 2):
        if message["role"] == "tool":
            message["content"] = f"{i} e\u0301 {words} "
        else:
            message["reasoning"] = f"step {i}"
    at = data.draw(st.sampled_from(range(2, len(messages) - 2, 2)))
    after = mutate(name, messages, at)
    if later:
        after += [calls("call_new"), result("call_new")]

    found = replay([{"messages": m} for m in (*model_calls(messages), after)])

    assert [report.kind for report in found] == [MUTATIONS[name]]


CLOCKS = (
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S+00:00",
    "%Y-%m-%dT%H:%M:%SZ",
    "%A, %d %B %Y %H:%M:%S UTC",
    "%a %b %d, %Y at %I:%M:%S %p",
    "%d.%m.%Y %H:%M:%S",
    "%m/%d/%Y, %I:%M:%S %p",
    "%H:%M:%S",
    "%Y%m%dT%H%M%SZ",
    "%B %d, %Y %H:%M:%S",
    "%Y年%m月%d日 %H:%M:%S",
)


@settings(deadline=None)
@given(
    moment=st.datetimes(datetime(2001, 9, 9, 2), datetime(2099, 1, 1)),
    ticks=st.integers(1, 90_000_000),
    form=st.sampled_from(CLOCKS),
    place=st.sampled_from(("Now: {}", "{}", "You are kind. <now>{}</now> Be brief.", "[{}]\n...")),
)
def test_a_clock_is_a_clock_in_any_format(
    moment: datetime, ticks: int, form: str, place: str
) -> None:
    first = moment.replace(tzinfo=UTC)
    texts = [place.format(m.strftime(form)) for m in (first, first + timedelta(seconds=ticks))]
    if texts[0] == texts[1]:
        return

    found = diagnose(*(trunk(loop(2, head=text)) for text in texts))

    assert found is not None
    assert (found.kind, found.path) == ("clock", "messages[0].content")


@settings(deadline=None)
@given(st.integers(1_000_000_000, 1_999_999_999), st.integers(1, 10**6), st.sampled_from((1, 1000)))
def test_epoch_seconds_and_milliseconds_are_clocks(start: int, ticks: int, scale: int) -> None:
    end = min(start + ticks, 1_999_999_999)
    heads = [f"started_at={moment * scale}" for moment in (start, end)]
    if start == end:
        return

    found = diagnose(*(trunk(loop(2, head=head)) for head in heads))

    assert found is not None
    assert found.kind == "clock"


@settings(deadline=None)
@given(st.uuids(version=4), st.uuids(version=4), st.sampled_from(("{}", "id {}", "<req_{}>")))
def test_an_identifier_is_an_identifier(first: uuid.UUID, second: uuid.UUID, place: str) -> None:
    if first == second:
        return
    for form in (str, lambda u: u.hex):
        found = diagnose(*(trunk(loop(2, head=place.format(form(u)))) for u in (first, second)))

        assert found is not None
        assert found.kind == "identifier"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("request req_8f3kd02ma1", "request req_1b9xk77qz4"),
        ("session 1048213", "session 1048214"),
        ("https://x.test/a?X-Amz-Signature=aa11&x=1", "https://x.test/a?X-Amz-Signature=bb29&x=1"),
        ("trace 4bf92f3577b34da6", "trace 00f067aa0ba902b7"),
    ],
)
def test_other_identifiers(before: str, after: str) -> None:
    found = diagnose(*(trunk(loop(1, head=text)) for text in (before, after)))

    assert found is not None
    assert found.kind == "identifier"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Memories: likes tea.", "Memories: likes tea. Owns a cat."),
        ("You have 3 tools.", "You have 4 tools."),
        ("Speak French.", "Speak German."),
        ("Now: 12:00. Be kind.", "Now: 12:01. Be brief."),
    ],
)
def test_another_instruction_is_an_edit(before: str, after: str) -> None:
    found = diagnose(*(trunk(loop(1, head=text)) for text in (before, after)))

    assert found is not None
    assert found.kind == "edited"


def _with(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


@pytest.mark.parametrize(
    ("before", "after", "kind", "path"),
    [
        ({}, _with("tools", TOOLS[:2]), "tools", "tools[2]"),
        ({}, _with("tools", []), "tools", "tools[0]"),
        ({}, _with("tools", [TOOLS[1], TOOLS[0], TOOLS[2]]), "tools", "tools[0]"),
        ({}, _with("chat_template_kwargs", {"enable_thinking": False}), "request_field",
         "chat_template_kwargs"),
        ({}, _with("reasoning_effort", "low"), "request_field", "reasoning_effort"),
        (_with("documents", ["a"]), _with("documents", ["b"]), "request_field", "documents"),
        (_with("cache_salt", "a"), _with("cache_salt", "b"), "isolation", "cache_salt"),
        ({}, _with("lora_request", {"name": "x"}), "isolation", "lora_request"),
        ({}, _with("model", "other"), "isolation", "model"),
    ],
)  # fmt: skip
def test_what_is_sent_beside_the_messages(
    before: dict[str, Any], after: dict[str, Any], kind: Kind, path: str
) -> None:
    found = diagnose(trunk(loop(2), **before), trunk(loop(3), **after))

    assert found is not None
    assert (found.kind, found.path) == (kind, path)
    assert found.lost_share > 0.5


def test_parallel_results_in_completion_order_are_reordered() -> None:
    batch = [system(), {"role": "user", "content": "Both?"}, calls("a", "b")]
    first = [*batch, result("a"), result("b")]
    second = [*batch, result("b"), result("a"), calls("c"), result("c")]

    found = replay([{"messages": m} for m in (batch[:2], first, second)])

    assert [(r.kind, r.path) for r in found] == [("reordered", "messages[3]")]


def test_a_schema_with_other_bytes_is_a_serialisation() -> None:
    other = copy.deepcopy(TOOLS)
    other[1]["function"]["parameters"] = dict(
        reversed(other[1]["function"]["parameters"].items())  # type: ignore[attr-defined]
    )

    found = diagnose(trunk(loop(2)), trunk(loop(3), tools=other))

    assert found is not None
    assert (found.kind, found.path) == ("serialisation", "tools[1].function.parameters")


def test_outer_keys_of_a_tool_in_another_order_are_no_break() -> None:
    other = [
        {"function": dict(reversed(t["function"].items())), "type": "function"}  # type: ignore[attr-defined]
        for t in TOOLS
    ]

    assert diagnose(trunk(loop(2)), trunk(loop(3), tools=other)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"id": "msg_1"},
        {"status": "error"},
        {"name": "search"},
        {"content": [{"type": "text", "text": "what call_0 found"}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_reach_the_prompt_is_no_break(change: dict[str, Any]) -> None:
    before, after = loop(1), loop(2)
    after[3] = {**after[3], **change}

    assert diagnose(trunk(before), trunk(after)) is None


def test_null_content_is_empty_content() -> None:
    before, after = loop(1), loop(2)
    after[2]["content"] = None

    assert diagnose(trunk(before), trunk(after)) is None


def test_a_constant_date_is_no_break() -> None:
    head = "The current time is 2024-05-15 15:00:00 EST."

    assert replay([{"messages": loop(n, head=head)} for n in range(4)]) == []
