"""The page quotes the measured run, and that run holds what it must."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_shadow.bench.report import Report

ROOT = Path(__file__).parents[3]


def build() -> Any:
    spec = importlib.util.spec_from_file_location(
        "build_correction", ROOT / "docs" / "build_correction.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measured() -> Report:
    return Report(**json.loads(build().RESULT.read_text()))


def test_the_page_quotes_the_result(tmp_path: Path) -> None:
    made = build()
    assert made.PAGE.read_text() == made.page(), "run `python docs/build_correction.py`"
    drifted = tmp_path / "correction.json"
    drifted.write_text(made.RESULT.read_text().replace('"worst_kl": 0.0', '"worst_kl": 0.9'))
    assert made.PAGE.read_text() != made.page(drifted)


def test_the_measured_run_holds_what_it_must(measured: Report) -> None:
    settings, summary = measured.settings, measured.summary
    assert settings["contexts"] == 8
    assert settings["tokens"] == 512
    assert all(40 <= tokens <= 55 for tokens in settings["role_tokens"].values())
    assert measured.machine["cores"] == 2
    assert settings["wall_s"] <= 600
    assert summary["worst_sanity_kl"]["100% most deviating"] < 1e-9
    assert summary["worst_sanity_kl"]["ceiling r=full"] < 1e-9
    assert summary["role_last_kl"] < 1e-5
    assert summary["as_it_lies_kl"] > summary["rotated_kl"]
    assert summary["ceiling_removes"]["ceiling r=32"] >= 0.85


def test_the_measured_contexts_are_the_examples(measured: Report) -> None:
    contexts = [row["context"] for row in measured.rows if row["part"] == "context"]
    files = sorted((ROOT / "examples" / "roles" / "contexts").glob("*.txt"))
    assert contexts == [path.name for path in files]
