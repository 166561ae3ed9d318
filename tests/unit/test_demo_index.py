"""The index of the standard library, and the two tools on it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from langgraph_shadow.demo import tools
from langgraph_shadow.demo.index import DocsIndex, build, entries_of_source, index_path

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''
"""A module."""
class Shelf:
    """Holds books.

    And nothing else.
    """
    def add(self, book, *, front=False):
        """Add one."""
    def _hidden(self):
        """Nobody's business."""
    def bare(self): ...
async def fetch(url="x"):
    """Fetch it."""
    def inner():
        """Not reachable by a name."""
'''


@dataclass(frozen=True, slots=True)
class Built:
    """A fresh index, and what the process that built it had imported."""

    folder: Path
    imported: frozenset[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("cache")
    code = (
        "import sys, pathlib; from langgraph_shadow.demo.index import DocsIndex\n"
        f"DocsIndex.open(pathlib.Path({str(folder)!r})); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Built(folder, frozenset(done.stdout.split()))


@pytest.fixture(scope="module")
def index(built: Built) -> DocsIndex:
    return DocsIndex.open(built.folder)


@pytest.fixture
def here(index: DocsIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "docs", lambda: index)


def test_a_source_gives_its_public_documented_names() -> None:
    entries = {e.name: e for e in entries_of_source("lib.shelf", SOURCE)}
    assert list(entries) == [
        "lib.shelf",
        "lib.shelf.Shelf",
        "lib.shelf.Shelf.add",
        "lib.shelf.fetch",
    ]
    assert entries["lib.shelf.Shelf.add"].signature == "(self, book, *, front=False)"
    assert entries["lib.shelf.Shelf"].summary == "Holds books."
    assert entries["lib.shelf.Shelf"].doc.endswith("And nothing else.")


def test_the_whole_library_is_in_it(index: DocsIndex) -> None:
    assert len(index) > 3000
    for name in ("csv", "shutil.copytree", "pathlib.Path.rmdir", "str.split", "math.sqrt", "os"):
        assert index.get(name), name
    assert index.get("csv._hidden") is None


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("copy directory tree", "shutil.copytree"),
        ("How do I find the median of some numbers?", "statistics.median"),
        ("temporary directory", "tempfile.TemporaryDirectory"),
        ("TemporaryDirectory", "tempfile.TemporaryDirectory"),
        ('"quoted AND (odd* NEAR: compress gzip', "gzip.compress"),
    ],
)
def test_a_question_finds_its_entry(index: DocsIndex, query: str, wanted: str) -> None:
    assert wanted in [entry.name for entry in index.search(query)]


@pytest.mark.parametrize("query", ["", "how do I", "?!", "zzqqxx"])
def test_nothing_to_find_is_no_error(index: DocsIndex, query: str) -> None:
    assert index.search(query) == []


def test_building_imports_no_module_with_side_effects(built: Built) -> None:
    assert not {"this", "antigravity", "turtle", "tkinter", "idlelib", "cgitb"} & built.imported


def test_it_is_built_once(index: DocsIndex, built: Built) -> None:
    before = index.path.stat().st_mtime_ns
    again = DocsIndex.open(built.folder)
    assert again.path == index_path(built.folder)
    assert again.path.stat().st_mtime_ns == before


def test_a_failed_build_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("disk full")

    monkeypatch.setattr("langgraph_shadow.demo.index.stdlib_entries", broken)
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path / "docs.sqlite3")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("here")
def test_search_docs_lists_names_with_their_first_lines() -> None:
    lines = tools.search_docs.invoke({"query": "copy directory tree"}).splitlines()
    assert len(lines) == 5
    assert "shutil.copytree: Recursively copy a directory tree" in "\n".join(lines)
    assert "Try other words" in tools.search_docs.invoke({"query": "zzqqxx"})


@pytest.mark.usefixtures("here")
def test_read_doc_gives_signature_and_text_and_cuts_long_ones() -> None:
    text = tools.read_doc.invoke({"name": "shutil.copytree"})
    assert text.startswith("shutil.copytree(src, dst, ")
    assert text.endswith("\n…")
    assert len(text) < tools.DOC_CHARACTERS + 200
    assert "…" not in tools.read_doc.invoke({"name": "math.sqrt"})


@pytest.mark.usefixtures("here")
def test_read_doc_names_what_may_have_been_meant() -> None:
    assert "Near it: shutil.copytree" in tools.read_doc.invoke({"name": "shutil.copytrees"})
    assert "tempfile.TemporaryDirectory" in tools.read_doc.invoke({"name": "temporarydirectory"})
