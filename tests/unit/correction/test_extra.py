"""The lab is an extra: nothing needs it, and it says what it needs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import langgraph_shadow
from langgraph_shadow.cli import app
from langgraph_shadow.correction import extra
from langgraph_shadow.errors import ShadowError

PACKAGE = Path(langgraph_shadow.__file__).parent
LAB = "langgraph_shadow.correction"


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_nothing_else_imports_the_lab() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(PACKAGE / "correction")
        and any(name.startswith(LAB) for name in imported(ast.parse(path.read_text())))
    }
    assert users == {"commands/roles.py"}


def test_the_extra_holds_what_is_asked_for() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    listed = project["optional-dependencies"][extra.EXTRA]
    assert {re.split(r"[<>=]", line)[0] for line in listed} == set(extra.PACKAGES)


def test_the_command_imports_it_only_when_it_runs() -> None:
    tree = ast.parse((PACKAGE / "commands" / "roles.py").read_text())
    top = {
        name
        for node in tree.body
        for name in imported(node)
        if not isinstance(node, ast.FunctionDef)
    }
    assert not any(name.startswith((LAB, "torch")) for name in top)


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_the_missing_extra_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == missing else known(name))
    with pytest.raises(extra.ExtraMissingError, match=missing) as absent:
        extra.check_extra()
    assert "langgraph-shadow[correction]" in str(absent.value)
    assert absent.value.missing == [missing]
    assert isinstance(absent.value, ShadowError)
    assert isinstance(absent.value, ImportError)

    for name in [name for name in sys.modules if name.startswith(LAB) and name != f"{LAB}.extra"]:
        monkeypatch.delitem(sys.modules, name)
    roles = tmp_path / "roles.json"
    roles.write_text(json.dumps({"a": "x", "b": "y"}))
    arguments = ["roles", "--roles", str(roles), "--contexts", str(roles), "--model", "x"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "pip install 'langgraph-shadow[correction]'" in refused.stderr
