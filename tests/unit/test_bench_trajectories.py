"""Recorded conversations: read, cut, and exported so that branches fork from their trunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from langgraph_shadow.bench.export import aiperf_lines, write_aiperf
from langgraph_shadow.bench.trajectories import Trajectory, read_trajectories
from langgraph_shadow.branches.branch import fact_check, user_update
from langgraph_shadow.cli import app
from langgraph_shadow.errors import TraceFormatError

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "../shared/data/tau_airline_40.jsonl"
RECORDED_TOOLS = ROOT / "../shared/data/tau_airline_tools.json"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def called(number: int) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "name": "look", "content": "seen"}


MESSAGES = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look twice."},
    called(0),
    result(0),
    called(1),
    result(1),
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "Bye."},
)
RECORDING = Trajectory("r", MESSAGES, (TOOL,))


def test_calls_and_batches() -> None:
    assert RECORDING.calls == [2, 4, 6, 8]
    assert RECORDING.batches == 2
    assert RECORDING.cut(2).messages == MESSAGES[:5]
    assert RECORDING.cut(2).batches == 1
    assert RECORDING.cut(99) == RECORDING


def test_a_file_is_read(tmp_path: Path) -> None:
    file, tools = tmp_path / "run.jsonl", tmp_path / "tools.json"
    own = {"type": "function", "function": {"name": "own"}}
    lines = [
        {"messages": MESSAGES, "id": "first"},
        {"messages": MESSAGES, "tools": [own]},
    ]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    tools.write_text(json.dumps([TOOL]))
    first, second = read_trajectories(file, tools)
    assert (first.name, first.messages, first.tools) == ("first", MESSAGES, (TOOL,))
    assert (second.name, second.tools) == ("line 3", (own,))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 0),
        ('{"messages": [{"role": "user", "content": "x"}]}\n{', 2),
        ('{"turns": []}', 1),
        ('{"messages": [{"content": "x"}]}', 1),
        ('{"messages": 7}', 1),
        ("[1]", 1),
    ],
)
def test_what_is_no_conversation_is_named_with_its_line(
    text: str, line: int, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(text)
    with pytest.raises(TraceFormatError) as caught:
        read_trajectories(file)
    assert str(file) in str(caught.value)
    if line:
        assert str(line) in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"tools": []}'])
def test_what_are_no_tools_is_named(text: str, tmp_path: Path) -> None:
    file, tools = tmp_path / "run.jsonl", tmp_path / "tools.json"
    file.write_text(json.dumps({"messages": MESSAGES}))
    tools.write_text(text)
    with pytest.raises(TraceFormatError, match="list of OpenAI tool schemas"):
        read_trajectories(file, tools)


def prompts(lines: list[dict[str, Any]]) -> dict[str, list[list[dict[str, Any]]]]:
    """Every request's messages by session: deltas add up, and a fork begins with its parent's."""
    parents = {}
    for line in lines:
        so_far: list[dict[str, Any]] = []
        for turn in line["turns"]:
            so_far += turn["messages"]
            for fork in turn.get("forks", ()):
                assert fork["background"] is True, "else the orchestrator would end there"
                parents[fork["child"]] = list(so_far)
    found = {}
    for line in lines:
        so_far = list(parents.get(line["session_id"], ()))
        found[line["session_id"]] = []
        for turn in line["turns"]:
            so_far += turn["messages"]
            found[line["session_id"]].append(list(so_far))
    return found


def test_a_workload_holds_the_recorded_prompts_and_a_branch_per_batch() -> None:
    branches = [user_update(), fact_check("It was seen.")]
    lines = list(aiperf_lines([RECORDING], branches, tool_seconds=0.25))
    sent = prompts(lines)
    assert sent.pop("r") == [list(MESSAGES[:end]) for end in (2, 4, 6, 8)]
    assert len(sent) == 4
    for branch in branches:
        ask = {"role": "user", "content": branch.instruction}
        asked = [p for name, (p,) in sent.items() if branch.name in name]
        assert asked == [[*MESSAGES[:4], ask], [*MESSAGES[:6], ask]]
    orchestrator, *forks = lines
    assert [t.get("delay") for t in orchestrator["turns"]] == [None, 250, 250, None]
    assert all(t["tools"] == [TOOL] for t in orchestrator["turns"])
    for fork in forks:
        (turn,) = fork["turns"]
        assert turn["extra"]["tool_choice"] == "none"
        assert turn["max_tokens"] in (48, 24)
    assert "structured_outputs" in forks[1]["turns"][0]["extra"]


def test_without_branches_the_orchestrator_is_the_same() -> None:
    (alone,) = aiperf_lines([RECORDING], [])
    beside, *_ = aiperf_lines([RECORDING], [user_update()])
    for turn in beside["turns"]:
        turn.pop("forks", None)
    assert alone == beside


def test_without_tools_nothing_speaks_of_them() -> None:
    lines = list(aiperf_lines([Trajectory("r", MESSAGES)], [user_update()]))
    assert "tool_choice" not in json.dumps(lines)


def test_the_export_command_writes_what_aiperf_reads(tmp_path: Path) -> None:
    file, out = tmp_path / "run.jsonl", tmp_path / "new" / "workload.jsonl"
    file.write_text(json.dumps({"messages": MESSAGES, "id": "r"}))
    done = CliRunner().invoke(app, ["bench", "export", "--trace", str(file), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "3 conversations" in done.output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["session_id"] == "r"
    # the fields that aiperf's loader knows; it refuses any other
    allowed = {"messages", "model", "max_tokens", "tools", "extra", "forks", "spawns", "delay"}
    for line in lines:
        assert set(line) == {"session_id", "context_mode", "turns"}
        assert all(set(turn) <= allowed for turn in line["turns"])


def test_aiperf_itself_reads_it(tmp_path: Path) -> None:
    loader = pytest.importorskip("aiperf.dataset.loader.dag_jsonl", reason="aiperf not installed")
    path = tmp_path / "w.jsonl"
    write_aiperf(path, aiperf_lines([RECORDING], [user_update()]))
    found = loader.DagJsonlLoader(path)
    assert len(found.load()) == 3
    assert found.root_session_ids() == {"r"}


def test_recorded_trajectories_are_read() -> None:
    if not RECORDED.exists():
        pytest.skip("the recorded trajectories are not here")
    found = read_trajectories(RECORDED, RECORDED_TOOLS)
    assert len(found) == 40
    assert all(t.tools and t.batches for t in found)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["cost", "--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["export", "--trace", "nowhere.jsonl", "--out", "x"], "nowhere.jsonl"),
        (["ttft", "--base-url", "http://127.0.0.1:9/v1"], "No model server answers"),
        (["prediction", "--templates", "."], "no template"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 2
    assert problem in done.output
    assert "Traceback" not in done.output
