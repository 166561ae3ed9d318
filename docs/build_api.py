"""Writes docs/api.md from the docstrings of what a user may import."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import griffe
from griffe2md import ConfigDict, render_object_docs

PUBLIC = [
    *("langgraph_shadow." + name for name in ("Shadow", "Branch", "ShadowEvent", "Affinity")),
    "langgraph_shadow.user_update",
    "langgraph_shadow.fact_check",
    "langgraph_shadow.memory_note",
    "langgraph_shadow.title",
    "langgraph_shadow.runner.options.Options",
    "langgraph_shadow.branches.branch.BatchView",
    "langgraph_shadow.delivery.ledger.Ledger",
    "langgraph_shadow.delivery.ledger.LedgerRow",
    "langgraph_shadow.delivery.ledger.Totals",
    "langgraph_shadow.delivery.return_clock.ReturnClock",
    "langgraph_shadow.delivery.return_clock.ReturnShare",
    "langgraph_shadow.guard.report.Report",
    "langgraph_shadow.errors.ShadowError",
    "langgraph_shadow.errors.PrefixMutationError",
    "langgraph_shadow.errors.AlignmentError",
    "langgraph_shadow.errors.ServerConfigError",
    "langgraph_shadow.errors.TraceFormatError",
    "langgraph_shadow.specialists.node.declare",
    "langgraph_shadow.specialists.node.specialist",
    "langgraph_shadow.specialists.node.ledger_of",
    "langgraph_shadow.specialists.team.Head",
    "langgraph_shadow.specialists.ledger.HopRow",
    "langgraph_shadow.specialists.ledger.HopLedger",
    "langgraph_shadow.specialists.errors.SpecialistError",
    "langgraph_shadow.specialists.errors.ToolNotAllowedError",
    "langgraph_shadow.testing",
    "langgraph_shadow.server.local.LocalServer",
]
TARGET = Path(__file__).parent / "api.md"
CONFIG = {
    "docstring_style": "google",
    "filters": ["!^_", "!^model_config$"],
    "heading_level": 2,
    "show_root_full_path": True,
    "show_object_full_path": False,
    "show_signature_annotations": True,
    "show_submodules": False,
    "members_order": "source",
    "summary": False,
}


def api() -> str:
    """The page's Markdown."""
    package = cast(
        "griffe.Module",
        griffe.load("langgraph_shadow", docstring_parser="google", resolve_aliases=True),
    )
    parts = ["# API reference", "Written by `make docs` from the docstrings."]
    for path in PUBLIC:
        found = package[path.removeprefix("langgraph_shadow.")]
        target = found.final_target if found.is_alias else found
        parts.append(render_object_docs(target, cast("ConfigDict", CONFIG)).strip())
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(api())
