"""The survey of a template and its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from langgraph_shadow.alignment.survey import Scenario, Surveyed, file_survey, survey, trunk
from langgraph_shadow.commands.template import template

ZOO = Path(__file__).parent / "template_zoo"

app = typer.Typer()
app.command()(template)

FOUND = {
    # template: carrier, stable in the loop, stable across turns, knob
    "plain": ("user_turn", True, True, None),
    "dated": ("user_turn", True, True, None),
    "single_string": ("user_turn", True, True, None),
    "reasoning_gate": ("nonce_splice", True, False, "keep_all_reasoning"),
    "tools_move": ("nonce_splice", True, False, None),
    "alternating": ("neutral_splice", True, True, None),
    "silent_user": ("neutral_splice", True, True, None),
    "last_thinking": ("neutral_splice", False, False, None),
    "twice": ("call_pair", True, True, None),
}


@pytest.mark.parametrize("name", FOUND)
async def test_what_a_template_does_is_found(name: str) -> None:
    row = await file_survey(ZOO / f"{name}.jinja")
    assert row.usable
    assert row.kept_through_last_tool_result
    assert row.kept_share is not None
    assert row.kept_share > 0.95
    found = (row.carrier, row.stable_in_loop, row.stable_across_turns, row.knob)
    assert found == FOUND[name]


@pytest.mark.parametrize(
    ("name", "word"), [("no_tools", "drops tool"), ("raises", "takes no prisoners")]
)
async def test_a_template_that_cannot_carry_a_tool_loop_says_why(name: str, word: str) -> None:
    row = await file_survey(ZOO / f"{name}.jinja")
    assert (row.usable, row.carrier, row.kept_share) == (False, None, None)
    assert word in row.reason


def test_scenarios_answer_every_call() -> None:
    for turns in (1, 2):
        line = trunk(Scenario(turns=turns), model="m")
        assert line.batch is not None
        assert line.batch.end == len(line.messages)
        assert line.has_reasoning
    assert not trunk(Scenario(reasoning=False), model="m").has_reasoning


def run(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_the_command_prints_one_row_per_template() -> None:
    files = [ZOO / "plain.jinja", ZOO / "reasoning_gate.jinja"]
    code, output = run(*files, "--json")
    rows = json.loads(output)
    assert code == 0
    assert [row["template"] for row in rows] == [str(f) for f in files]
    assert set(rows[0]) == set(Surveyed.__slots__)
    assert [row["knob"] for row in rows] == [None, "keep_all_reasoning"]


def test_unusable_templates_exit_1_and_unreadable_files_2(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jinja"
    bad.write_bytes(b"\xff\xfe")
    code, output = run(ZOO / "no_tools.jinja", ZOO / "plain.jinja")
    assert code == 1
    assert "drops tool" in output
    code, output = run(ZOO / "plain.jinja", bad, ZOO / "raises.jinja", "--json")
    assert code == 2
    assert [row["usable"] for row in json.loads(output)] == [True, False, False]
    assert "UTF-8" in json.loads(output)[1]["reason"]


def test_files_or_a_server_but_not_both() -> None:
    assert run()[0] == 2
    code, output = run(ZOO / "plain.jinja", "--base-url", "http://127.0.0.1:1")
    assert code == 2
    assert "not both" in output


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1/v1"])
def test_no_server_is_a_clear_error(url: str) -> None:
    code, output = run("--base-url", url)
    assert code == 2
    assert "Is it a vLLM server?" in output


async def test_a_server_is_surveyed_through_its_renderer() -> None:
    from langgraph_shadow.alignment.render_local import LocalRenderer

    renderer = LocalRenderer.from_file(ZOO / "reasoning_gate.jinja")
    row = await survey("served", lambda _: renderer, model="m")
    assert (row.template, row.carrier) == ("served", "nonce_splice")
