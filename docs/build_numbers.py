"""Writes the numbers in README.md and docs/cluster.md from the JSON in benchmarks/results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CLUSTER = ROOT / "docs" / "cluster.md"
RESULTS = ROOT / "benchmarks" / "results"


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
        f"Runs behind a wall time, at least: {repeats}. How far two such runs differ is in "
        "[benchmarks](docs/benchmarks.md).\n"
    )


def readme(folder: Path = RESULTS) -> str:
    """The README with these numbers."""
    return _filled(README, numbers=numbers(folder))


def cluster(folder: Path = RESULTS) -> str:
    """The page on more than one server with its two tables."""
    router, pd = (json.loads((folder / f"{name}.json").read_text()) for name in ("router", "pd"))
    return _filled(CLUSTER, router=_router(router), pd=_pd(pd))


def _filled(page: Path, **blocks: str) -> str:
    text = page.read_text()
    for name, block in blocks.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = marks.sub(lambda m, block=block: f"{m[1]}{block}{m[2]}", text)
    return text


def _router(report: dict[str, Any]) -> str:
    rows = [
        [
            row["arm"],
            row["requests"],
            f"{row['orchestrator_cached']:.1%}",
            f"{row['branch_cached']:.1%}",
            "" if row["as_on_one"] is None else f"{row['as_on_one']:.0%}",
            f"{row['ttft_ms']:.0f}",
            f"{row['branch_ttft_ms']:.0f}",
            f"{row['wall_s']:.1f}",
        ]
        for row in report["rows"]
    ]
    heads = ["arm", "requests per server", "orchestrator, cached", "branches, cached"]
    heads += ["same tokens as on one", "orchestrator TTFT, ms", "branch TTFT, ms", "wall, s"]
    settings = report["settings"]
    return (
        f"{settings['threads']} agents at once with {settings['batches']} tool batches each; "
        f"{_machine(report)}.\n\n{_table(heads, rows)}"
    )


def _pd(report: dict[str, Any]) -> str:
    rows = [
        [
            row["kv_return"],
            row["prefill_cache"],
            row["shadows"],
            f"{row['ttft_ms']:.0f}",
            f"{row['cached']:.1%}",
            str(row["read_back"]),
            str(row["computed"]),
            "" if row["branch_cached"] is None else f"{row['branch_cached']:.1%}",
        ]
        for row in report["rows"]
    ]
    heads = ["KV return", "prefill's own cache", "shadows", "later turns' TTFT, ms"]
    heads += ["found by prefill", "tokens read back", "computed by prefill", "branches, cached"]
    return (
        f"One agent with {report['settings']['batches']} tool batches; {_machine(report)}.\n\n"
        f"{_table(heads, rows)}"
    )


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _machine(report: dict[str, Any]) -> str:
    versions = report["versions"]
    names = ("vllm", "vllm-router", "nixl")
    parts = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    return (
        f"{report['server']['model']} on {report['machine']['cores']} cores "
        f"({report['machine']['cpu']}), {parts}"
    )


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
    CLUSTER.write_text(cluster())
