"""Several local servers behind one address: replicas behind vllm-router."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Self

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.local import DEFAULT_ENV, LocalServer
from langgraph_shadow.server.models import (
    EMBEDDED_MODELS,
    LOCAL_SERVER,
    check_packages,
    model_folder,
)
from langgraph_shadow.server.pinning import cores_of_servers
from langgraph_shadow.server.progress import Progress, silent
from langgraph_shadow.server.router import RouterProcess, check_router

_MEMORY_GIB = {"tiny": 2.0, "smollm2": 3.0}
"""Memory of one server without its KV cache, about (facts/vllm.md, "Start")."""
_POLL_S = 0.25


class Replicas:
    """Servers of one model, each on cores of its own, behind vllm-router with `consistent_hash`.

    Example:
        ```python
        with Replicas("smollm2", count=2) as cluster:
            llm = ChatOpenAI(base_url=cluster.base_url, model=cluster.model, api_key="-")
            shadow = Shadow(llm, affinity=Affinity.for_router("vllm-router"))
        ```

    Attributes:
        servers: The servers; the address of each stays reachable beside the router's.
        router: The router.
    """

    def __init__(
        self,
        model: str | Path = "smollm2",
        *,
        count: int = 2,
        port: int | None = None,
        served_model_name: str | None = None,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        router_args: Sequence[str] = (),
        progress: Progress = silent,
    ) -> None:
        """Describes the cluster; nothing is started yet.

        Args:
            model: As for `LocalServer`.
            count: Servers.
            port: The router's loopback port; a free one when not given.
            served_model_name: As for `LocalServer`.
            extra_args: vLLM flags, for every server.
            env: Environment variables, for every server.
            router_args: vllm-router's flags; they win over the defaults.
            progress: Called with the stage and the seconds since the start.
        """
        self._source = str(model)
        self._progress = progress
        self._env = env or {}
        cores = cores_of_servers()
        self.servers = [
            LocalServer(
                model,
                served_model_name=served_model_name,
                cpus=cores[i % len(cores)],
                extra_args=extra_args,
                env=env,
            )
            for i in range(count)
        ]
        workers = [s.root_url for s in self.servers]
        self.router = RouterProcess(["--worker-urls", *workers, *router_args], port=port)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def root_url(self) -> str:
        """The router's address, without `/v1`."""
        return self.router.root_url

    @property
    def base_url(self) -> str:
        """What an OpenAI client wants."""
        return self.router.base_url

    @property
    def model(self) -> str:
        """The served model's name."""
        return self.servers[0].model

    @property
    def running(self) -> bool:
        """Whether the router and at least one server are running."""
        return self.router.running and any(s.running for s in self.servers)

    def start(self) -> None:
        """Starts every server at once, then the router.

        Raises:
            ServerConfigError: The machine has too few cores or too little memory, a package is
                missing, or a server or the router did not start.
        """
        check_router()
        check_machine(self._source, len(self.servers), self._env)
        try:
            start_servers(self._source, self.servers, self._progress)
            self.router.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the router and every server."""
        self.router.stop()
        stop_servers(self.servers)


def check_machine(model: str, count: int, env: Mapping[str, str]) -> None:
    """Finds out whether `count` servers can run beside each other here.

    Two servers on one core starve each other: about one token in a second (facts/vllm.md, "Start").

    Raises:
        ServerConfigError: There are fewer cores than servers, or the free memory is too little.
    """
    cores = len(cores_of_servers())
    if sys.platform == "linux" and cores < count:
        problem = f"{count} servers need {count} CPU cores, and there are {cores}"
        remedy = "Start fewer servers, or allow this process more cores (taskset, cgroup)."
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=remedy)
    cache = {**DEFAULT_ENV, **os.environ, **env}["VLLM_CPU_KVCACHE_SPACE"]
    free, needed = _free_memory(), count * (_MEMORY_GIB.get(model, 0.0) + float(cache))
    if free is not None and free < needed:
        problem = (
            f"{count} servers of {model} need about {needed:.0f} GiB of memory, and {free:.1f} GiB "
            "are free"
        )
        remedy = "Start fewer servers, or give each less KV cache (VLLM_CPU_KVCACHE_SPACE, GiB)."
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=remedy)


def start_servers(model: str, servers: Sequence[LocalServer], progress: Progress) -> None:
    """Starts servers beside each other; the first failure is raised when all have settled."""
    begun = time.monotonic()
    stage = "failed"
    try:
        check_packages()
        progress("building the model folder", 0.0)
        for name in EMBEDDED_MODELS:
            if model == name:
                model_folder(name)
        with ThreadPoolExecutor(len(servers)) as pool:
            starts = [pool.submit(server.start) for server in servers]
            while wait(starts, timeout=_POLL_S).not_done:
                progress("starting vLLM", time.monotonic() - begun)
            for start in starts:
                start.result()
        stage = "ready"
    finally:
        progress("ready" if stage == "ready" else "failed", time.monotonic() - begun)


def stop_servers(servers: Sequence[LocalServer]) -> None:
    """Ends servers beside each other."""
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(LocalServer.stop, servers))


def _free_memory() -> float | None:
    """GiB of memory that a new process could use; None when the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) / 1024**2
    return None
