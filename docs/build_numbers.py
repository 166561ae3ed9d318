"""Writes the README's numbers from the JSON that `make bench` left in benchmarks/results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- numbers -->\n).*?(<!-- /numbers -->)", re.DOTALL)


def numbers(folder: Path = RESULTS) -> str:
    """The README's table and what stands around it."""
    found = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in ("cost", "ttft", "harm", "prediction", "overhead")
    }
    rows = [
        *_prediction(found["prediction"]),
        *_cost(found["cost"]),
        *_ttft(found["ttft"]),
        *_harm(found["harm"]),
        *_overhead(found["overhead"]),
    ]
    table = "\n".join(f"| {what} | {value} |" for what, value in rows)
    repeats = min(row["repeats"] for row in found["harm"]["rows"])
    return (
        f"{_where(found['harm'])}\n\n| what | measured |\n|---|---|\n{table}\n\n"
        f"Runs behind a wall time, at least: {repeats}. A few per cent of it are noise.\n"
    )


def readme(folder: Path = RESULTS) -> str:
    """The README with these numbers."""
    return BLOCK.sub(lambda m: f"{m[1]}{numbers(folder)}{m[2]}", README.read_text())


def _where(report: dict[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    return (
        f"On {machine['cores']} cores ({machine['cpu']}), without a GPU: vLLM {versions['vllm']}, "
        f"SmolLM2-135M, langgraph {versions['langgraph']}. Written by `make bench`; every arm and "
        "row is in `benchmarks/results/`, and what they mean in [benchmarks](docs/benchmarks.md)."
    )


def _prediction(report: dict[str, Any]) -> list[tuple[str, str]]:
    sent = [row for row in report["rows"] if row["cached"] is not None]
    exact = sum(row["cached"] == row["predicted"] for row in sent)
    more = sum(row["cached"] > row["predicted"] for row in sent)
    return [
        (
            "predicted = cached, over carriers, templates, block sizes and launch modes",
            f"{exact} of {len(sent)} branches; {more} found more under `lead`, "
            f"{len(sent) - exact - more} fewer",
        )
    ]


def _cost(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for source, arms in report["summary"].items():
        others = ", ".join(
            f"{name} {arms[name]:.2f}" for name in ("tool-less shadow", "narrator", "share_insight")
        )
        rows.append(
            (
                f"prompt tokens computed against no shadow, {source}",
                f"aligned {arms['aligned shadow']:.2f} "
                f"({arms['aligned beyond its instruction']:+.1%} beyond the instructions' own), "
                f"{others}",
            )
        )
    return rows


def _ttft(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            f"first token of a branch on {row['trunk_tokens']} tokens of trunk",
            f"aligned {row['aligned_ms']:.0f} ms, unaligned {row['unaligned_ms']:.0f} ms, "
            f"nothing cached {row['cold_ms']:.0f} ms",
        )
        for row in (report["rows"][0], report["rows"][-1])
    ]


def _harm(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for threads in (1, 4):
        for seconds in (0.0, 0.5):
            load = (threads, [seconds], True)
            mine = {
                row["launch"]: row["wall_ratio"]
                for row in report["rows"]
                if (row["threads"], row["tool_seconds"], row["priority"]) == load
            }
            ratios = ", ".join(f"`{name}` {mine[name]:.2f}" for name in ("follow", "gap", "lead"))
            agents = "1 agent" if threads == 1 else f"{threads} agents"
            rows.append((f"wall time against no shadow, {agents}, tools of {seconds:g} s", ratios))
    return rows


def _overhead(report: dict[str, Any]) -> list[tuple[str, str]]:
    s = report["summary"]
    return [
        (
            f"the library's own time in the agent's path, {s['history_tokens']} tokens of history",
            f"{s['path_us']:.0f} µs per batch",
        )
    ]


if __name__ == "__main__":
    README.write_text(readme())
