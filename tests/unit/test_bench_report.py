"""Reports: what is written can be read again, and says where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from langgraph_shadow.bench import (
    cost,
    harm,
    overhead,
    pd,
    plots,
    prediction,
    router,
    specialists,
    ttft,
)
from langgraph_shadow.bench.report import (
    Report,
    machine,
    median,
    percentile,
    ratio,
    shown,
    table_of,
    versions,
)


def test_the_file_is_the_report_with_a_row_per_line(tmp_path: Path) -> None:
    report = Report(bench="ttft", rows=[{"a": 1, "b": "ä"}, {"a": None, "b": "x"}], notes=["n"])
    path = report.save(tmp_path / "new")
    text = path.read_text(encoding="utf-8")
    assert Report(**json.loads(text)) == report
    assert path.name == "ttft.json"
    assert [line.strip(" ,") for line in text.splitlines() if '"a"' in line] == [
        '{"a": 1, "b": "ä"}',
        '{"a": null, "b": "x"}',
    ]


def test_a_report_without_rows_is_json_too() -> None:
    assert json.loads(Report(bench="cost").text())["rows"] == []


def test_two_reports_are_joined() -> None:
    one = Report(bench="cost", rows=[{"a": 1}], summary={"x": 1}, notes=["same", "one"])
    other = Report(bench="cost", rows=[{"a": 2}], summary={"y": 2}, notes=["same", "two"])
    both = one.joined(other)
    assert both.rows == [{"a": 1}, {"a": 2}]
    assert both.summary == {"x": 1, "y": 2}
    assert both.notes == ["same", "one", "two"]


def test_machine_and_versions_are_named() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert found["cpu"]
    assert found["python"].startswith("3.")
    assert "langgraph" in versions()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (True, "yes"),
        (3, "3"),
        (1234.56, "1235"),
        (0.01234, "0.0123"),
        (2.0, "2"),
        ("x", "x"),
    ],
)
def test_cells(value: object, expected: str) -> None:
    assert shown(value) == expected


def test_statistics_pass_over_what_is_not_known() -> None:
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None
    assert percentile(list(map(float, range(100))), 0.95) == 95
    assert percentile([], 0.5) is None
    assert ratio(3, 2) == 1.5
    assert ratio(None, 2) is None
    assert ratio(1, 0) is None


def test_a_table_has_a_line_above_each_group() -> None:
    rows = [{"g": "one", "a": "x", "n": 1}, {"g": "one", "a": "y", "n": 2}, {"g": "two", "n": 3}]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table_of("t", rows, {"a": "name", "n": "number"}, "g"))
    text = capture.get()
    assert text.count("one") == 1
    assert text.index("one") < text.index("x") < text.index("y") < text.index("two")


ROWS = {
    "cost": [
        {"input": i, "arm": a, "computed": 10, "computed_ratio": 1.0, "model": "m"}
        for i in ("agent", "recorded")
        for a in ("none", "aligned")
    ],
    "ttft": [
        {"trunk_tokens": n, "cold_ms": 9.0, "unaligned_ms": 8.0, "aligned_ms": 2.0, "full_ms": 1.0}
        for n in (500, 1000)
    ],
    "harm": [
        {"case": c, "arm": a, "launch": a, "wall_ratio": 1.0}
        for c in ("1 thread, tools 0 s", "4 threads, tools 0 s")
        for a in ("follow", "gap")
    ],
    "prediction": [
        {"block_size": 32, "predicted": 64, "cached": 64},
        {"block_size": 32, "predicted": None, "cached": None},
    ],
    "specialists": [
        {"agents": 3, "threads": t, "arm": a, "context_tokens": n, "computed": n, "ttft_ms": 9.0}
        for t in (1, 4)
        for n in (1000, 2000)
        for a in ("role first", "role last")
    ],
    "router": [
        {"arm": a, "orchestrator_cached": 0.6, "branch_cached": share}
        for a, share in (("affinity", 0.9), ("round_robin", None))
    ],
    "pd": [
        {"arm": f"KV return {r}, prefill cache off, shadows on", "ttft_ms": t, "prefill_ms": t}
        for r, t in (("on", 800.0), ("off", None))
    ],
    "overhead": [
        {"history_tokens": n, "path_us": 10.0, "align_ms": 1.0, "retained_kib": 3.0}
        for n in (1000, 100_000)
    ],
}


@pytest.mark.parametrize("name", list(ROWS))
def test_every_benchmark_is_drawn(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the `bench` extra is not installed")
    report = Report(bench=name, rows=ROWS[name], server={"model": "m"}, machine={"cores": 2})
    path = plots.save(report, tmp_path)
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")


def test_there_is_no_picture_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    assert plots.save(Report(bench="ttft", rows=ROWS["ttft"]), tmp_path) is None


def test_every_benchmark_says_how_its_table_looks() -> None:
    for module in (cost, harm, overhead, pd, prediction, router, specialists, ttft):
        assert len(module.COLUMNS) > 5
