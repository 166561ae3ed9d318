"""The documentation is of today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_reference_is_what_the_docstrings_say() -> None:
    build = script("build_api")
    assert build.TARGET.read_text() == build.api(), "run `make docs`"


def test_the_pages_quote_the_benchmarks_results() -> None:
    build = script("build_numbers")
    assert build.README.read_text() == build.readme(), "run `make docs`"
    assert build.CLUSTER.read_text() == build.cluster(), "run `make docs`"


def test_a_number_that_drifts_is_found(tmp_path: Path) -> None:
    build = script("build_numbers")
    for path in build.RESULTS.glob("*.json"):
        text = path.read_text()
        for field in ("aligned_ms", "ttft_ms"):
            text = text.replace(f'"{field}": ', f'"{field}": 9')
        (tmp_path / path.name).write_text(text)
    assert build.README.read_text() != build.readme(tmp_path)
    assert build.CLUSTER.read_text() != build.cluster(tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
