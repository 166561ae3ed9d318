"""Writes the numbers of docs/correction.md from benchmarks/results/correction.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langgraph_shadow.bench.report import shown

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "correction.md"
RESULT = ROOT / "benchmarks" / "results" / "correction.json"
BLOCK = re.compile(r"(<!-- numbers -->\n).*?(<!-- /numbers -->)", re.DOTALL)

HOP = {
    "method": "first hop",
    "kl": "KL",
    "share_of_role": "of the role's effect",
    "worst_kl": "worst context",
    "top1": "top-1",
    "answer_kl": "answer: KL",
    "answer_share": "of the role's effect",
    "answer_top1": "top-1",
    "explained_k": "ΔK gone",
    "explained_v": "ΔV gone",
}
COST = {
    "method": "for each agent",
    "ms": "ms",
    "of_prefill": "of a prefill",
    "copy_mib": "cache of its own, MiB",
    "factors_mib": "as factors, MiB",
    "stored_mib": "kept beside, MiB",
}
DIFFERENCE = {
    "hop": "difference",
    "of": "",
    "relative": "size",
    "not_rotated": "not rotated",
    "first_16_tokens": "first 16",
    "second_half": "second half",
    **{f"rank_{rank}": f"r={rank}" for rank in (1, 8, 32, 64)},
    "cosine": "alike in contexts",
}


def page(result: Path = RESULT) -> str:
    """The page with the numbers of a result."""
    report = json.loads(result.read_text(encoding="utf-8"))
    block = numbers(report)
    return BLOCK.sub(lambda m: f"{m[1]}{block}{m[2]}", PAGE.read_text(encoding="utf-8"))


def numbers(report: Mapping[str, Any]) -> str:
    """The tables, and the recommendation that the lab itself drew from them."""
    of = {
        part: [row for row in report["rows"] if row["part"] == part]
        for part in ("hop", "chain", "difference")
    }
    agents = list(report["settings"]["role_tokens"])
    chain = {"method": "KL, and its share of the role's effect, at the last of"}
    for row in of["chain"]:
        for agent in range(2, len(agents) + 1):
            share = row[f"share_{agent}"]
            after = "" if share is None else f" ({share:.0%})"
            row[f"both_{agent}"] = f"{shown(row[f'kl_{agent}'])}{after}"
            chain[f"both_{agent}"] = f"{agent} agents"
    costly = [row for row in of["hop"] if "copy_mib" in row]
    advice = [
        note
        for note in report["notes"]
        if not note.startswith(("Differs from what was published", "KL(exact"))
    ]
    parts = [
        _where(report),
        f"`{agents[0]}` to `{agents[1]}`:",
        _table(of["hop"], HOP),
        _table(costly, COST),
        _table(of["chain"], chain),
        _table(of["difference"], DIFFERENCE),
        "What the lab says to these numbers:",
        "\n".join(f"- {note}" for note in advice),
    ]
    return "\n\n".join(parts) + "\n"


def _where(report: Mapping[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    shape, versions = report["server"], report["versions"]
    roles = settings["role_tokens"].values()
    return (
        f"SmolLM2-135M ({shape['layers']} layers, {shape['kv_heads']} KV heads of "
        f"{shape['head_dim']}), {settings['dtype']}, {settings['contexts']} contexts of "
        f"{settings['tokens']} tokens, {len(roles)} roles of {min(roles)} to {max(roles)} tokens "
        f"with their template, torch {versions['torch']} (threads: {machine['threads']}) on "
        f"{machine['cores']} cores ({machine['cpu']}, load {machine['load_before']} before and "
        f"{machine['load_after']} after). It took {settings['wall_s']:.0f} s; a "
        f"prefill of a context {settings['prefill_ms']:.0f} ms."
    )


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(shown(row.get(key)) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
