"""The benchmarks on the real server, in their smallest size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from langgraph_shadow.bench.harm import OFF, STAGGERED, Arm, Case
from langgraph_shadow.bench.harm import run as run_harm
from langgraph_shadow.bench.target import Target
from langgraph_shadow.bench.ttft import run as run_ttft
from langgraph_shadow.cli import app
from tests.conftest import VllmServer

STEPS = 3


@pytest.fixture
def target(vllm_server: VllmServer) -> Target:
    return Target.at(vllm_server.base_url)


def bench(server: VllmServer, out: Path, name: str, *arguments: str) -> dict[str, Any]:
    where = ["--base-url", server.base_url, "--out", str(out), "--quick", "--json"]
    done = CliRunner().invoke(app, ["bench", name, *where, *arguments])
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((out / f"{name}.json").read_text()) == report
    assert report["bench"] == name
    assert report["machine"]["cores"]
    assert report["versions"]["vllm"]
    return report


def recording(path: Path) -> Path:
    """A recorded run of a few tool batches."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You look things up. " * 80},
        {"role": "user", "content": "Look."},
    ]
    for step in range(STEPS):
        function = {"name": "look", "arguments": json.dumps({"at": step})}
        call = {"id": f"c{step}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{step}", "name": "look", "content": "Ice. " * 60},
        ]
    messages.append({"role": "assistant", "content": "Ice."})
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    path.write_text(json.dumps({"id": "r", "messages": messages, "tools": [tool]}))
    return path


def test_nothing_differs_from_its_prediction(vllm_server: VllmServer, tmp_path: Path) -> None:
    report = bench(vllm_server, tmp_path, "prediction")
    sent = [row for row in report["rows"] if row["cached"] is not None]
    assert len(sent) >= 8
    assert all(row["predicted"] == row["cached"] > 0 for row in sent)
    assert len({row["carrier"] for row in sent}) >= 5
    assert report["summary"]["differing_tokens"] == 0
    assert report["notes"][0].startswith("0 differing tokens")


def test_the_arms_of_cost(vllm_server: VllmServer, tmp_path: Path) -> None:
    trace = recording(tmp_path / "run.jsonl")
    report = bench(vllm_server, tmp_path, "cost", "--constrained", "--trace", str(trace))
    assert {row["input"] for row in report["rows"]} == {"research agent", "recorded trajectories"}
    for source in ("research agent", "recorded trajectories"):
        plain, aligned, tool_less, narrator, tool = (
            row for row in report["rows"] if row["input"] == source
        )
        assert plain["calls"] == aligned["calls"] == tool_less["calls"] == narrator["calls"]
        assert tool["calls"] == plain["calls"] + tool["updates"] > plain["calls"]
        assert aligned["mispredicted"] == 0
        assert aligned["instruction"] > 0
        assert 0 < aligned["added"] < tool_less["added"]
        assert aligned["added"] < narrator["added"]
    recorded = next(
        r for r in report["rows"] if r["input"] != "research agent" and r["instruction"] is not None
    )
    # at most the part of a block that each branch computes again
    assert recorded["added"] - recorded["instruction"] < STEPS * 32
    assert recorded["calls"] == STEPS + 1


def test_roles_in_front_and_behind(vllm_server: VllmServer, tmp_path: Path) -> None:
    report = bench(vllm_server, tmp_path, "specialists", "--agents", "3", "--context", "500")
    first, last = report["rows"]
    assert (first["arm"], last["arm"]) == ("role first", "role last")
    assert last["computed"] < first["computed"]
    assert report["summary"]["mispredicted"] == 0


async def test_an_aligned_branch_finds_its_trunk(target: Target) -> None:
    report = await run_ttft(target, lengths=(600,), repeats=1)
    (row,) = report.rows
    assert row["trunk_tokens"] == pytest.approx(600, rel=0.05)
    assert row["cached"] >= row["trunk_tokens"] - 2 * target.block_size
    assert row["unaligned_cached"] <= 4 * target.block_size
    assert row["unaligned_tokens"] < row["branch_tokens"]
    assert all(row[f"{arm}_ms"] > 0 for arm in ("cold", "unaligned", "aligned", "full"))


async def test_every_launch_mode_beside_agents(target: Target) -> None:
    launches = (OFF, Arm("follow"), Arm("gap"), Arm("lead", priority=False))
    ahead = (OFF, Arm("follow", prefill_ahead=True))
    quick = tuple(seconds / 10 for seconds in STAGGERED)
    cases = [Case(2, (0.0,), launches), Case(1, quick, ahead)]
    report = await run_harm(target, chosen=cases, max_repeats=1, batches=2)
    assert [row["arm"] for row in report.rows] == [a.name for c in cases for a in c.arms]
    for row in report.rows:
        assert row["wall_s"] > 0
        assert row["ttft_ms"] > 0
        assert row["itl_ms"] > 0
        assert row["returns"] == 2 * row["threads"]
        assert row["back_whole"] == row["under_30_s"] == 1
        assert row["branches"] == (2 * row["threads"] if row["launch"] else 0)
        assert row["mispredicted"] == 0
        assert row["found_more"] == 0 or row["launch"] == "lead"
