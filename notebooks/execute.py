"""Run notebooks from a clean kernel and keep their outputs: `python notebooks/execute.py [NAME …]`.

They use the server that `LANGGRAPH_SHADOW_BASE_URL` and `LANGGRAPH_SHADOW_MODEL` name, or start a
local one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
CELL_S = 1200
"""Seconds that one cell may take."""


def notebooks() -> list[Path]:
    """Every notebook, in order."""
    return sorted(HERE.glob("*.ipynb"))


def execute(path: Path, env: Mapping[str, str] | None = None) -> nbformat.NotebookNode:
    """Run a notebook in a new kernel; the file stays as it is.

    Args:
        path: The notebook.
        env: Environment variables besides the process's own.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    search = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as sockets:
        client = NotebookClient(
            notebook,
            km=AsyncKernelManager(
                kernel_name="python3", transport="ipc", ip=str(Path(sockets) / "kernel")
            ),
            timeout=CELL_S,
            coalesce_streams=True,
            resources={"metadata": {"path": str(HERE)}},
            record_timing=False,
        )
        client.execute(env={**os.environ, "PYTHONPATH": search, **(env or {})})
    return notebook


def main(names: list[str]) -> None:
    """Execute the notebooks whose name contains one of `names`, or all, in place."""
    for path in notebooks():
        if not names or any(name in path.stem for name in names):
            print(path.name)
            nbformat.write(execute(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
