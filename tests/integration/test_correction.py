"""The correction lab on the real 135M model, in small; benchmarks/results has the whole run."""

from __future__ import annotations

from pathlib import Path

from langgraph_shadow.correction.report import run
from langgraph_shadow.server.models import smollm2_folder

EXAMPLES = Path(__file__).parents[2] / "examples" / "roles"


def test_what_must_hold_on_the_small_model(tmp_path: Path) -> None:
    roles = tmp_path / "roles.json"
    roles.write_text(
        '{"researcher": "You are a researcher. Note every fact, date and number, and say where the '
        'material is silent.", "critic": "You are a critic. Name the weakest point first."}'
    )
    contexts = sorted((EXAMPLES / "contexts").glob("*.txt"))[:3]
    report = run(smollm2_folder(), roles, contexts, tokens=192, continuation=32)

    sanity = report.summary["worst_sanity_kl"]
    assert sanity["100% most deviating"] < 1e-9
    assert sanity["ceiling r=full"] < 1e-9
    assert sanity["role last"] < 1e-5
    assert report.summary["rotated_kl"] < report.summary["as_it_lies_kl"]
    assert report.summary["ceiling_removes"]["ceiling r=32"] > 0.8
    assert 1e-4 < report.summary["rotated_kl"] < report.summary["role_effect_kl"] < 0.1
    size = {row["of"]: row["relative"] for row in report.rows if row["part"] == "difference"}
    assert 0.01 < size["K"] < size["V"] < 0.3
