"""A full-text index of the standard library's docstrings, built once per Python version.

Sources are parsed, not imported: importing the whole standard library would open windows, start
threads and print poems. Only the C modules in `C_MODULES`, which have no source, are imported.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
import re
import sqlite3
import sys
import sysconfig
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from langgraph_shadow.server.models import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 1
"""Part of the file's name; raised when the index's layout changes."""

SKIPPED = re.compile(
    "__phello__|antigravity|distutils|encodings|ensurepip|idlelib|lib2to3|pydoc|pydoc_data|test|"
    "this|tkinter|turtle|turtledemo"
)
"""Modules that are left out: no use to a reader, or much text about nothing."""

C_MODULES = {
    "_collections": "collections",
    "_csv": "csv",
    "_functools": "functools",
    "_io": "io",
    "_operator": "operator",
    "_signal": "signal",
    "_socket": "socket",
    "_sqlite3": "sqlite3",
    "_struct": "struct",
    "array": "array",
    "binascii": "binascii",
    "builtins": "",
    "gc": "gc",
    "itertools": "itertools",
    "math": "math",
    "posix": "os",
    "sys": "sys",
    "time": "time",
    "zlib": "zlib",
}
"""Modules written in C that are safe to import, and the name under which people know them."""

STOP_WORDS = re.compile(
    "a|an|and|are|at|can|do|does|for|from|how|i|in|into|is|it|me|my|of|on|or|python|should|that|"
    "the|there|this|to|use|using|want|way|what|when|which|with|you"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One documented thing.

    Attributes:
        name: Dotted name, for example `csv.DictReader`.
        signature: Its arguments in parentheses; empty for modules.
        doc: The docstring, indentation removed.
    """

    name: str
    signature: str
    doc: str

    @property
    def summary(self) -> str:
        """The docstring's first line."""
        return self.doc.split("\n", 1)[0]


def entries_of_source(module: str, source: str) -> Iterator[Entry]:
    """The documented public module, classes and functions of one source file."""
    tree = ast.parse(source)
    if doc := ast.get_docstring(tree):
        yield Entry(module, "", doc)
    yield from _members(module, tree.body)


def _members(prefix: str, body: list[ast.stmt]) -> Iterator[Entry]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        name = f"{prefix}.{node.name}"
        doc = ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            if doc:
                yield Entry(name, "", doc)
            yield from _members(name, node.body)
        elif doc:
            yield Entry(name, f"({ast.unparse(node.args)})", doc)


def entries_of_c_module(module: str, known_as: str) -> Iterator[Entry]:
    """The documented public members of a module that has no source."""
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        return
    if module == known_as and (doc := inspect.getdoc(loaded)):
        yield Entry(known_as, "", doc)
    for name, member in vars(loaded).items():
        if name.startswith("_") or not callable(member):
            continue
        full = f"{known_as}.{name}" if known_as else name
        if doc := inspect.getdoc(member):
            yield Entry(full, "", doc)
        if not isinstance(member, type) or issubclass(member, BaseException):
            continue
        for part, value in vars(member).items():
            if callable(value) and not part.startswith("_") and (doc := inspect.getdoc(value)):
                yield Entry(f"{full}.{part}", "", doc)


def stdlib_entries() -> Iterator[Entry]:
    """Everything that goes into the index."""
    root = Path(sysconfig.get_path("stdlib"))
    for top in sorted(sys.stdlib_module_names):
        if top.startswith("_") or SKIPPED.fullmatch(top):
            continue
        single, package = root / f"{top}.py", root / top
        for path in [single] if single.is_file() else sorted(package.rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            if any(p.startswith("_") or p in {"test", "tests", "site-packages"} for p in parts):
                continue
            yield from entries_of_source(".".join(parts), path.read_text("utf-8"))
    for module, known_as in C_MODULES.items():
        yield from entries_of_c_module(module, known_as)


def search_words(text: str) -> list[str]:
    """The words of a question that are worth searching for."""
    return [w for w in re.findall(r"\w+", text.lower()) if not STOP_WORDS.fullmatch(w)]


def _words(name: str) -> str:
    """`tempfile.TemporaryDirectory` as the words that people search for."""
    return " ".join([name, re.sub(r"[._]|(?<=[a-z])(?=[A-Z])", " ", name)])


def index_path(directory: Path | None = None) -> Path:
    """The index of this Python version."""
    version = ".".join(map(str, sys.version_info[:3]))
    return (directory or cache_dir()) / f"python-docs-{version}-{FORMAT}.sqlite3"


def build(path: Path) -> None:
    """Write the index; another process sees the old file, or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        with closing(sqlite3.connect(part)) as db, db:
            db.execute("CREATE TABLE entry (name TEXT PRIMARY KEY, signature TEXT, doc TEXT)")
            db.executemany(
                "INSERT OR IGNORE INTO entry VALUES (?, ?, ?)",
                ((e.name, e.signature, e.doc) for e in stdlib_entries()),
            )
            db.execute(
                "CREATE VIRTUAL TABLE search USING fts5(words, summary, doc, tokenize='porter')"
            )
            db.create_function("words", 1, _words)
            db.create_function("summary", 1, lambda doc: doc.split("\n", 1)[0])
            db.execute(
                "INSERT INTO search (rowid, words, summary, doc)"
                " SELECT rowid, words(name), summary(doc), doc FROM entry"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class DocsIndex:
    """The index, open for reading from any thread.

    Attributes:
        path: The SQLite file.
    """

    path: Path

    @classmethod
    def open(cls, directory: Path | None = None) -> DocsIndex:
        """Open the index of this Python version; the first time, build it (a few seconds)."""
        path = index_path(directory)
        if not path.exists():
            build(path)
        return cls(path)

    def __len__(self) -> int:
        return int(self._rows("SELECT count(*) FROM entry")[0][0])

    def _rows(self, sql: str, *values: object) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as db:
            return db.execute(sql, values).fetchall()

    def search(self, query: str, *, limit: int = 5) -> list[Entry]:
        """The entries that fit `query` best, best first."""
        words = search_words(query)
        if not words:
            return []
        # The weights make a word in the name worth more than one in the text.
        rows = self._rows(
            "SELECT name, signature, entry.doc FROM search JOIN entry ON entry.rowid = search.rowid"
            " WHERE search MATCH ? ORDER BY bm25(search, 6, 4, 1) LIMIT ?",
            " OR ".join(f'"{word}"' for word in words),
            limit,
        )
        return [Entry(*row) for row in rows]

    def get(self, name: str) -> Entry | None:
        """The entry of that dotted name."""
        rows = self._rows("SELECT name, signature, doc FROM entry WHERE name = ?", name)
        return Entry(*rows[0]) if rows else None

    def near(self, name: str, *, limit: int = 3) -> list[str]:
        """Names that somebody who asked for `name` may have meant."""
        names = [row[0] for row in self._rows("SELECT name FROM entry ORDER BY name")]
        last = name.rpartition(".")[2].lower()
        same = [n for n in names if n.rpartition(".")[2].lower() == last]
        return [*same, *difflib.get_close_matches(name, names, n=limit)][:limit]
