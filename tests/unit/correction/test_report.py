"""The whole lab on a tiny folder: rows, sanity, and a recommendation that follows from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from langgraph_shadow.bench.report import Report
from langgraph_shadow.cli import app
from langgraph_shadow.correction.report import run
from langgraph_shadow.correction.settings import Settings
from tests.unit.correction.conftest import text

SMALL = Settings(rank=6, low_rank=2, first=4)


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("roles") / "roles.json"
    path.write_text(json.dumps({name: text(4 * n, seed=n) for n, name in enumerate("abc", 2)}))
    return path


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    tmp_path = tmp_path_factory.mktemp("contexts")
    paths = [tmp_path / f"context-{n}.txt" for n in range(3)]
    for n, path in enumerate(paths):
        path.write_text(text(40, seed=n))
    return paths


@pytest.fixture(scope="module")
def report(folder: Path, roles: Path, contexts: list[Path]) -> Report:
    return run(folder, roles, contexts, tokens=24, continuation=8, question="w3 w4", settings=SMALL)


def test_what_must_be_exact_is_exact_and_the_rest_is_measured(report: Report) -> None:
    assert set(report.summary["worst_sanity_kl"]) == {
        "100% most deviating",
        "ceiling r=full",
        "role last",
    }
    assert max(report.summary["worst_sanity_kl"].values()) < 1e-9
    kl = {row["method"]: row["kl"] for row in report.rows if row["part"] == "hop"}
    assert kl["ceiling r=6"] < kl["ceiling r=2"] < kl["rotated"] < kl["as it lies"]
    assert kl["role of the agent before"] > 0
    assert {"first 4 tokens", "15% most deviating", "ridge map r=6", "KVCMAS, gated"} <= set(kl)
    assert {"KVCMAS rule, anchors: 1", "KVCMAS rule, anchors: 2"} <= set(kl)


def test_shares_are_of_the_roles_effect(report: Report) -> None:
    rows = {row["method"]: row for row in report.rows if row["part"] == "hop"}
    effect = rows["role of the agent before"]
    for name in ("rotated", "ridge map r=6"):
        row = rows[name]
        assert row["share_of_role"] == pytest.approx(row["kl"] / effect["kl"], abs=1e-3)
        shares = row["answer_kl"] / effect["answer_kl"]
        assert row["answer_share"] == pytest.approx(shares, abs=1e-3)
    assert rows["role last"]["share_of_role"] is None


def test_memory_and_time_are_there(report: Report) -> None:
    rows = {row["method"]: row for row in report.rows if row["part"] == "hop"}
    copy = 24 * 2 * 3 * 2 * 12 * 2 / 2**20
    assert rows["rotated"]["copy_mib"] == pytest.approx(copy, abs=1e-3)
    assert rows["role last"]["copy_mib"] < copy
    assert rows["KVCMAS rule, anchors: 2"]["stored_mib"] > rows["rotated"]["stored_mib"] == 0
    assert rows["first 4 tokens"]["ms"] > 0
    assert rows["ceiling r=6"]["ms"] is None, "nobody could run it"
    assert report.settings["prefill_ms"] > 0
    assert report.settings["wall_s"] > 0


def test_the_chain_is_followed_to_its_end(report: Report) -> None:
    rows = {row["method"]: row for row in report.rows if row["part"] == "chain"}
    assert {"rotated", "ridge map r=6", "KVCMAS, gated", "ceiling r=6", "role last"} <= set(rows)
    assert all({"kl_2", "kl_3", "share_3"} <= set(row) for row in rows.values())
    hops = {row["method"]: row["kl"] for row in report.rows if row["part"] == "hop"}
    assert all(row["kl_2"] == hops[name] for name, row in rows.items())
    assert rows["KVCMAS, gated"]["dense_2"] >= 0.66, "two contexts fill the pool"


def test_the_difference_is_described(report: Report) -> None:
    rows = [row for row in report.rows if row["part"] == "difference"]
    assert [(row["hop"], row["of"]) for row in rows] == [
        ("a → b", "K"),
        ("a → b", "V"),
        ("b → c", "K"),
        ("b → c", "V"),
    ]
    for row in rows:
        assert 0 < row["relative"] <= row["not_rotated"]
        ranks = [row[f"rank_{rank}"] for rank in (1, 4, 8, 16, 32, 64)]
        assert ranks == sorted(ranks)
        assert ranks[-1] == pytest.approx(1.0)
        assert -1 <= row["cosine"] <= 1


def test_contexts_can_be_told_apart(report: Report) -> None:
    rows = [row for row in report.rows if row["part"] == "context"]
    assert [row["context"] for row in rows] == [f"context-{n}.txt" for n in range(3)]
    mean = sum(row["kl"]["rotated"] for row in rows) / 3
    assert report.summary["rotated_kl"] == pytest.approx(mean, rel=1e-3)


def test_the_run_can_be_repeated(
    report: Report, folder: Path, roles: Path, contexts: list[Path]
) -> None:
    again = run(
        folder, roles, contexts, tokens=24, continuation=8, question="w3 w4", settings=SMALL
    )
    assert again.summary["ceiling_removes"] == report.summary["ceiling_removes"]
    one, other = ([row for row in r.rows if row["part"] == "chain"] for r in (report, again))
    assert one == other


def test_half_precision_costs_rounding_and_says_so(
    folder: Path, roles: Path, contexts: list[Path]
) -> None:
    report = run(
        folder, roles, contexts, tokens=24, continuation=8, dtype="bfloat16", settings=SMALL
    )
    assert 1e-7 < max(report.summary["worst_sanity_kl"].values()) < report.summary["rotated_kl"]
    assert report.settings["dtype"] == "bfloat16"


def test_notes_recommend_and_list_deviations(report: Report) -> None:
    assert report.notes[0].startswith("Put the role behind the context")
    assert sum(note.startswith("Differs from what was published") for note in report.notes) == 5
    assert "torch" in report.versions
    assert report.machine["device"] == "cpu"


def test_one_context_cannot_be_learned_from(
    folder: Path, roles: Path, contexts: list[Path]
) -> None:
    report = run(folder, roles, contexts[:1], tokens=24, continuation=8, settings=SMALL)
    methods = {row["method"] for row in report.rows if row["part"] == "hop"}
    assert not any(name.startswith("KVCMAS rule") for name in methods)
    assert any("two contexts at least" in note for note in report.notes)


def test_the_command_prints_tables_or_json(folder: Path, roles: Path, contexts: list[Path]) -> None:
    files = [str(path) for path in contexts[:2]]
    arguments = ["roles", "--model", str(folder), "--roles", str(roles), "--tokens", "24"]
    arguments += ["--continuation", "8", "--device", "cpu", "--contexts", *files]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    for words in ("a → b", "role last", "Along the chain", "Put the role behind"):
        assert words in shown.stdout
    machine = CliRunner().invoke(app, [*arguments, "--json"])
    data = json.loads(machine.stdout)
    assert data["bench"] == "correction"
    assert {row["part"] for row in data["rows"]} == {"hop", "chain", "difference", "context"}
    assert data["settings"]["contexts"] == 2, "files after the first belong to --contexts too"


def test_what_cannot_be_used_is_named(folder: Path, roles: Path, contexts: list[Path]) -> None:
    def refused(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["roles", *arguments])
        assert found.exit_code == 2
        return found.stderr

    files = ["--roles", str(roles), "--contexts", str(contexts[0])]
    assert "cannot be read" in refused("--model", str(roles.parent / "none"), *files)
    assert "40 tokens" in refused("--model", str(folder), *files)
    other = roles.parent / "other"
    shutil.copytree(folder, other)
    config = json.loads((folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    assert "'gpt2'" in refused("--model", str(other), *files, "--tokens", "24")
