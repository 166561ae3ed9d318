"""The notebooks run from a clean kernel, and were committed with the outputs of a real run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import VllmServer

nbformat = pytest.importorskip("nbformat", reason="needs the extra `notebooks`")
pytest.importorskip("nbclient", reason="needs the extra `notebooks`")

from notebooks.execute import execute, notebooks  # noqa: E402

NOTEBOOKS = notebooks()
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in code(notebook) for output in cell.outputs]


def printed(notebook: Any) -> str:
    """All that its outputs show as text."""
    shown = [o.get("text", "") for o in outputs(notebook)]
    for output in outputs(notebook):
        data = output.get("data", {})
        shown += [text for kind, text in data.items() if kind.startswith("text/")]
    return "\n".join(shown)


@pytest.mark.integration
@each
def test_it_runs_from_a_clean_kernel(path: Path, vllm_server: VllmServer) -> None:
    server = {
        "LANGGRAPH_SHADOW_BASE_URL": vllm_server.base_url,
        "LANGGRAPH_SHADOW_MODEL": vllm_server.model,
        "LANGSMITH_API_KEY": "",
    }
    executed = execute(path, server)
    assert all(cell.execution_count for cell in code(executed))
    # the same kinds of outputs as were committed: nothing was left out by a condition
    committed = code(nbformat.read(path, as_version=4))
    for then, now in zip(committed, code(executed), strict=True):
        assert bool(then.outputs) == bool(now.outputs), now.source


@each
def test_it_was_committed_after_one_whole_run(path: Path) -> None:
    cells = code(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [o for cell in cells for o in cell.outputs if o.output_type == "error"]


@each
def test_its_outputs_name_no_machine(path: Path) -> None:
    text = printed(nbformat.read(path, as_version=4))
    assert not re.search(r"/home/|/root/|/tmp/|/Users/|site-packages|127\.0\.0\.1", text)


def named(stem: str) -> Any:
    [path] = [path for path in NOTEBOOKS if path.stem == stem]
    return nbformat.read(path, as_version=4)


def test_the_quickstart_shows_an_update_and_the_timeline() -> None:
    text = printed(named("01_quickstart"))
    assert "model: smollm2" in text
    assert "shadow ▸" in text
    assert "<svg" in text
    proof = re.search(r"predicted = cached on (\d+) of (\d+) branches", text)
    assert proof
    assert proof[1] == proof[2] != "0"


def test_the_guard_notebook_shows_what_a_clock_costs_and_what_repair_saves() -> None:
    text = printed(named("02_cache_guard"))
    assert "clock at messages[0].content" in text
    assert "model calls that were sent: 1" in text
    broken, repaired = (int(share) for share in re.findall(r"reused \((\d+)%\)", text))
    assert broken < 10
    assert repaired > 50


def test_the_cost_notebook_measures_every_arm() -> None:
    notebook = named("03_what_a_shadow_costs")
    text = printed(notebook)
    for arm in ("no shadow", "aligned shadow", "tool-less shadow", "narrator", "share_insight"):
        assert arm in text
    assert sum("image/png" in o.get("data", {}) for o in outputs(notebook)) == 2


def test_the_experiment_notebook_compares_every_variant_offline() -> None:
    text = printed(named("04_langsmith_experiment"))
    for key in ("skip_precision", "skip_recall", "one_sentence", "language", "lag_s"):
        assert key in text
    assert "3 experiments and 150 scores recorded" in text


def test_the_specialists_notebook_shows_both_ledgers_and_the_refusal() -> None:
    text = printed(named("05_specialists"))
    assert "model: smollm2" in text
    proof = re.search(r"predicted = cached on (\d+) of (\d+) hops", text)
    assert proof
    assert proof[1] == proof[2] != "0"
    assert "role first" in text
    assert "role last" in text
    saved = re.findall(r"(\d+) prompt tokens computed with the role in front, (\d+) behind", text)
    assert len(saved) == 2
    assert all(int(behind) < int(front) / 2 for front, behind in saved)
    assert "ToolNotAllowedError" in text
