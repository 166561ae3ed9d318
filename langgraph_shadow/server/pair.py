"""A prefill and a decode server that hand KV blocks to each other, both ways."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.cluster import (
    check_machine,
    start_servers,
    stop_servers,
)
from langgraph_shadow.server.local import HOST, LocalServer, free_port
from langgraph_shadow.server.models import LOCAL_SERVER
from langgraph_shadow.server.pinning import cores_of_servers
from langgraph_shadow.server.progress import Progress, silent
from langgraph_shadow.server.router import RouterProcess, check_router

INSTALL_NIXL = "Run: pip install --no-deps nixl==1.5.2 nixl-cu12==1.5.1 (no CUDA is needed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How blocks move between the two servers; vLLM's own defaults.

    Attributes:
        kv_return: Whether the decode server's blocks may be read back by the prefill server.
        kv_recompute_threshold: Tokens below which the prefill server computes rather than reads.
        decoder_kv_blocks_ttl: Seconds that the decode server keeps the blocks of an answer.
        kv_lease_duration: Seconds that the prefill server keeps blocks that nobody fetched yet.
        kv_load_failure_policy: `fail` or `recompute`, when blocks could not be read.
    """

    kv_return: bool = True
    kv_recompute_threshold: int = 64
    decoder_kv_blocks_ttl: int = 480
    kv_lease_duration: int = 30
    kv_load_failure_policy: str = "fail"

    def config(self, role: str) -> str:
        """The value of vLLM's `--kv-transfer-config`."""
        extra: dict[str, Any] = {
            "bidirectional_kv_xfer": self.kv_return,
            "kv_recompute_threshold": self.kv_recompute_threshold,
            "decoder_kv_blocks_ttl": self.decoder_kv_blocks_ttl,
            "kv_lease_duration": self.kv_lease_duration,
        }
        return json.dumps(
            {
                "kv_connector": "NixlConnector",
                "kv_role": role,
                "kv_load_failure_policy": self.kv_load_failure_policy,
                "kv_connector_extra_config": extra,
            }
        )

    def __str__(self) -> str:
        back = "on" if self.kv_return else "off"
        return (
            f"KV return {back}, kv_recompute_threshold {self.kv_recompute_threshold} tokens, "
            f"decoder_kv_blocks_ttl {self.decoder_kv_blocks_ttl} s"
        )


class PrefillDecode:
    """One prefill and one decode server, each on a core of its own, behind vllm-router.

    Attributes:
        prefill: Computes prompts.
        decode: Generates.
        router: Sends each request to the one and then to the other. It gives no blocks back to the
            prefill server: a conversation proxy does (`examples/pd_proxy.py`).
        transfer: How blocks move.
    """

    def __init__(
        self,
        model: str | Path = "smollm2",
        *,
        port: int | None = None,
        served_model_name: str | None = None,
        transfer: Transfer | None = None,
        prefill_cache: bool = True,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        progress: Progress = silent,
    ) -> None:
        """Describes the pair; nothing is started yet.

        Args:
            model: As for `LocalServer`.
            port: The router's loopback port; a free one when not given.
            served_model_name: As for `LocalServer`.
            transfer: How blocks move; with KV return when not given.
            prefill_cache: Whether the prefill server has a prefix cache of its own.
            extra_args: vLLM flags, for both servers.
            env: Environment variables, for both servers.
            progress: Called with the stage and the seconds since the start.
        """
        self._source = str(model)
        self._progress = progress
        self._env = env or {}
        self.transfer = transfer or Transfer()
        cores = cores_of_servers()

        def server(index: int, role: str, flags: Sequence[str]) -> LocalServer:
            channel = {
                "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            }
            config = ("--kv-transfer-config", self.transfer.config(role))
            return LocalServer(
                model,
                served_model_name=served_model_name,
                cpus=cores[index % len(cores)],
                extra_args=[*config, *flags, *extra_args],
                env={**channel, **(env or {})},
            )

        self.prefill = server(
            0, "kv_producer", () if prefill_cache else ("--no-enable-prefix-caching",)
        )
        self.decode = server(1, "kv_consumer", ())
        urls = ("--prefill", self.prefill.root_url, "--decode", self.decode.root_url)
        self.router = RouterProcess(["--vllm-pd-disaggregation", *urls], port=port)

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
        return self.decode.model

    @property
    def proxy_args(self) -> tuple[str, ...]:
        """What a conversation proxy must be told of the pair."""
        where = ("--prefill", self.prefill.root_url, "--decode", self.decode.root_url)
        return (*where, "--ttl", str(self.transfer.decoder_kv_blocks_ttl))

    @property
    def running(self) -> bool:
        """Whether all three are running."""
        return self.router.running and self.prefill.running and self.decode.running

    def start(self) -> None:
        """Starts both servers at once, then the router.

        Raises:
            ServerConfigError: NIXL or vllm-router is not installed, the machine is too small, or a
                process did not start.
        """
        check_nixl()
        check_router()
        check_machine(self._source, 2, self._env)
        try:
            start_servers(self._source, (self.prefill, self.decode), self._progress)
            self.router.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the router and both servers."""
        self.router.stop()
        stop_servers((self.prefill, self.decode))


def check_nixl() -> None:
    """Finds out, before anything slow starts, whether blocks can be moved here.

    Raises:
        ServerConfigError: NIXL is not installed.
    """
    if find_spec("nixl") is None:
        problem = f"Not installed for {sys.executable}: nixl, which moves KV blocks"
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=INSTALL_NIXL)
