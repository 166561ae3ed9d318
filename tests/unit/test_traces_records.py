"""The records of a file, whatever JSON it is, each with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.traces.recording import read_recording
from langgraph_shadow.traces.records import read_records
from tests.unit.guard_histories import loop

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1), max_size=5)


def records(folder: Path, text: str) -> list[tuple[int, Any]]:
    file = folder / "run.json"
    file.write_bytes(text.encode("utf-8"))
    return [(r.line, r.value) for r in read_records(file)]


@settings(max_examples=50)
@given(values=RECORDS, indent=st.sampled_from([None, 1]), name=st.sampled_from(["runs", "spans"]))
def test_the_same_records_in_every_layout(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], indent: int | None, name: str
) -> None:
    folder = tmp_path_factory.mktemp("layout")
    lines = "".join(f"{json.dumps(v)}\n\n" for v in values)
    array = json.dumps(values, indent=indent)

    assert records(folder, lines) == [(1 + 2 * i, v) for i, v in enumerate(values)]
    found = records(folder, array)
    assert [v for _, v in found] == values
    starts = array.split("\n")
    assert all(starts[line - 1].strip() for line, _ in found)
    if values:
        held = records(folder, json.dumps({name: values}, indent=indent))
        assert held == [(1, v) for v in values]


def test_the_lines_of_a_printed_array(tmp_path: Path) -> None:
    text = '[\n  {\n    "a": 1\n  },\n  {"a": 2}, {"a": 3},\n\n  {\n    "a": 4\n  }\n]\n'
    assert records(tmp_path, text) == [(2, {"a": 1}), (5, {"a": 2}), (5, {"a": 3}), (7, {"a": 4})]


def test_a_printed_document_is_one_record(tmp_path: Path) -> None:
    text = '{\n  "messages": [\n    {"role": "user"}\n  ]\n}\n'
    assert records(tmp_path, text) == [(1, {"messages": [{"role": "user"}]})]


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ('{"a": 1}\n{"a": \n{"a": 3}\n', 2, "no valid JSON"),
        ('{"a": \n{"a": 2}\n', 1, "no valid JSON"),
        ('{\n  "a": 1,\n  b\n}\n', 3, "no valid JSON"),
        ('[\n  {"a": 1},\n  {"a" 2}\n]', 3, "no valid JSON"),
        ('[\n  {"a": 1},\n  {"a": 2}\n', 4, "an array that is not closed"),
        ('[{"a": 1}, ', 1, "no valid JSON"),
        ("hello\n", 1, "no valid JSON"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, line: int, found: str) -> None:
    with pytest.raises(TraceFormatError) as raised:
        records(tmp_path, text)

    assert raised.value.line == line
    assert f":{line}: {found}" in str(raised.value)
    assert raised.value.expected.startswith("JSON")


@pytest.mark.parametrize(
    ("records", "line", "found", "expected"),
    [
        ([{"model": "m"}], 1, "a record of no known format", "a LangSmith run (`run_type`)"),
        ([[1]], 1, "a record of no known format", "an OpenTelemetry span"),
        ([{"run_type": "chain", "id": "1"}], 0, "no model call in it", "at least one model call"),
        (
            [{"run_type": "llm", "inputs": {}}, {"messages": loop(1)}],
            2,
            "run_type: Field required",
            "a LangSmith run",
        ),
        ([{"run_type": "llm"}, {"run_type": 3}], 2, "run_type: ", "a LangSmith run"),
        (
            [{"run_type": "llm", "start_time": "yesterday"}],
            1,
            "start_time: ",
            "a LangSmith run",
        ),
        ([{"attributes": {}}, {"name": "x"}], 2, "something else", "an OpenTelemetry span"),
        ([{"attributes": {}}, "x"], 2, "something else", "an OpenTelemetry span"),
        ([{"resourceSpans": [{"scopeSpans": [1]}]}], 1, "something else", "`resourceSpans`"),
        (
            [{"attributes": {"gen_ai.prompt": "{}"}, "start_time": "noon"}],
            1,
            "start_time 'noon'",
            "ISO 8601",
        ),
        (
            [{"request": {"messages": loop(1)}}, {"response": {}}],
            2,
            "request: Field required",
            "a logged request",
        ),
    ],
)
def test_errors_say_what_was_expected(
    tmp_path: Path, records: list[Any], line: int, found: str, expected: str
) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")

    with pytest.raises(TraceFormatError) as raised:
        read_recording(file)

    assert (raised.value.path, raised.value.line) == (str(file), line)
    assert found in str(raised.value)
    assert expected in raised.value.expected
