"""What a benchmark found: rows, the machine and versions behind them, a table, a file."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rich import box
from rich.table import Table
from rich.text import Text

PACKAGES = ("langgraph-shadow", "langgraph", "langchain-core", "langchain-openai", "openai")

Row = dict[str, Any]


class Report(BaseModel):
    """One run of one benchmark, as `--json` prints it.

    Attributes:
        bench: The benchmark's name.
        machine: Where it ran, with the load before and after.
        versions: Package versions, and the server's.
        server: The server and the model that were asked.
        settings: Sizes and repeats of this run.
        rows: What was measured; times in milliseconds or seconds, as their names say.
        summary: The numbers that are quoted elsewhere.
        notes: What a reader must know to read the rows, in sentences.
    """

    bench: str
    machine: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    rows: list[Row] = Field(default_factory=list)
    summary: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)

    def text(self) -> str:
        """The report as JSON, one row per line, so that two runs can be compared by eye."""
        data = self.model_dump(mode="json")
        head = {name: data[name] for name in data if name != "rows"}
        shown = json.dumps(head, indent=2, ensure_ascii=False)
        rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in data["rows"])
        return f'{shown[:-2]},\n  "rows": [\n    {rows}\n  ]\n}}'

    def save(self, folder: Path) -> Path:
        """Write `NAME.json` to a folder and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.bench}.json"
        path.write_text(self.text() + "\n", encoding="utf-8")
        return path

    def joined(self, other: Report) -> Report:
        """This report and another one of the same benchmark, as one."""
        return Report(
            bench=self.bench,
            versions={**self.versions, **other.versions},
            server=self.server,
            settings={**self.settings, **other.settings},
            rows=[*self.rows, *other.rows],
            summary={**self.summary, **other.summary},
            notes=list(dict.fromkeys([*self.notes, *other.notes])),
        )


def table_of(
    title: str, rows: Sequence[Row], columns: Mapping[str, str], group: str | None = None
) -> Table:
    """Rows as a rich table.

    Args:
        title: What stands above it.
        rows: The rows.
        columns: Keys of the rows, each with the head of its column.
        group: Key whose value stands above the rows that share it, instead of in each.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding = True
    for key, head in columns.items():
        numeric = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(head, justify="right" if numeric else "left", no_wrap=numeric)
    above: Any = None
    for row in rows:
        if group is not None and row[group] != above:
            above = row[group]
            table.add_section()
            table.add_row(Text(str(above), style="bold"))
        table.add_row(*(Text(shown(row.get(key))) for key in columns))
    return table


def shown(value: Any) -> str:
    """A value as a table cell: four digits at most where it was measured."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def machine() -> dict[str, Any]:
    """The machine that the benchmark's client (and a local server) runs on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": cores,
        "memory_gib": _memory_gib(),
        "python": platform.python_version(),
    }


def load() -> float | None:
    """Processes that wanted a core in the last minute: on a quiet machine far below its cores."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def versions() -> dict[str, str]:
    """Versions of the packages that take part on the client's side."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is known, rounded to three digits after the point."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of the values lie."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def ratio(value: float | None, base: float | None) -> float | None:
    """`value` in units of `base`, rounded to three digits."""
    return round(value / base, 3) if value is not None and base else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None
