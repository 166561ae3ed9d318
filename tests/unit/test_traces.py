"""Reading recorded requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.traces.breaks import find_breaks
from langgraph_shadow.traces.reader import read_requests
from langgraph_shadow.trunk.model import TrunkKey
from tests.unit.guard_histories import TOOLS, Words, loop


def write(folder: Path, *bodies: Any) -> Path:
    file = folder / "run.jsonl"
    lines = (b if isinstance(b, bytes) else json.dumps(b).encode() for b in bodies)
    file.write_bytes(b"\n".join(lines) + b"\n")
    return file


def body(steps: int, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": loop(steps), "tools": TOOLS, **more}


def test_a_body_becomes_a_trunk(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 9}
    file = write(
        tmp_path,
        b"\xef\xbb\xbf" + json.dumps(body(1)).encode(),
        b"",
        body(
            2,
            thread_id=7,
            namespace="sub:1",
            node="agent",
            usage=usage,
            temperature=0.5,
            stream=True,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
            cache_salt="s",
        ),
    )

    first, second = read_requests(file)

    assert (first.index, first.line, first.trunk.key) == (0, 1, TrunkKey(""))
    assert (second.index, second.line, second.usage) == (1, 3, usage)
    assert second.trunk.key == TrunkKey("7", "sub:1", "agent")
    assert second.trunk.messages == tuple(loop(2))
    assert second.trunk.tools == tuple(TOOLS)
    assert second.trunk.fields == {
        "cache_salt": "s",
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_times_give_the_order_when_all_lines_have_one(tmp_path: Path) -> None:
    late, early = body(2, time="2026-07-21T12:00:02+00:00"), body(1, time=1784635201.5)

    assert [r.index for r in read_requests(write(tmp_path, late, early))] == [1, 0]
    assert [r.index for r in read_requests(write(tmp_path, late, body(1)))] == [0, 1]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"{", "no valid JSON"),
        (b"[1]", "the line: "),
        (b"\xff\xfe{}", "bytes that are not UTF-8"),
        ({"model": "m"}, "messages: Field required"),
        ({"messages": []}, "messages: "),
        ({"messages": "hello"}, "messages: "),
        ({"messages": [{"content": "x"}]}, "messages.0.role: Field required"),
        ({"messages": [{"role": 3}]}, "messages.0.role: "),
        (body(1, tools={"a": 1}), "tools: "),
        (body(1, time="yesterday"), "time: "),
        (body(1, thread_id=["a"]), "thread_id: "),
        (b'{"messages": ' + b"[" * 100_000, "JSON that cannot be read"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_an_unreadable_line_is_named(tmp_path: Path, line: Any, found: str) -> None:
    file = write(tmp_path, body(1), b"", line)

    with pytest.raises(TraceFormatError) as raised:
        read_requests(file)

    assert (raised.value.path, raised.value.line) == (str(file), 3)
    assert f"{file}:3: {found}" in str(raised.value)
    assert "expected " in str(raised.value)


def test_a_file_without_requests_or_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="no request in it"):
        read_requests(write(tmp_path, b"", b"  "))
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read_requests(tmp_path / "missing.jsonl")
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read_requests(tmp_path)


async def test_a_renderer_prices_breaks_and_drops_those_it_does_not_see(tmp_path: Path) -> None:
    renumbered = body(2)
    renumbered["messages"][2]["tool_calls"][0]["id"] = "call_9"
    renumbered["messages"][3]["tool_call_id"] = "call_9"
    edited = body(3)
    edited["messages"][0]["content"] = "Be brief."
    requests = read_requests(write(tmp_path, body(1), renumbered, edited))

    by_rule = await find_breaks(requests)
    priced = await find_breaks(requests, renderer=Words(), block_size=8)

    assert [b.report.kind for b in by_rule] == ["identifier", "edited"]
    assert [(b.request.index, b.report.kind) for b in priced] == [(2, "edited")]
    assert priced[0].row()["lost_tokens"] > 100
