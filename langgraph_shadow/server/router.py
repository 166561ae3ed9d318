"""vllm-router as a process of our own, in front of servers that run already."""

from __future__ import annotations

import contextlib
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

import httpx2

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.kept import Kept
from langgraph_shadow.server.local import HOST, free_port, require_free
from langgraph_shadow.server.models import LOCAL_SERVER, cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

# The module, not the `vllm-router` script, which need not be on the PATH.
VLLM_ROUTER = (sys.executable, "-P", "-m", "vllm_router.launch_router")
DEFAULT_ARGS = (
    *("--host", HOST),
    *("--policy", "consistent_hash"),
    *("--log-level", "warning"),
    # A dead server is noticed after two checks; the router's own default is three minutes.
    *("--health-check-interval-secs", "2"),
    *("--health-failure-threshold", "2"),
    *("--worker-startup-check-interval", "1"),
)
INSTALL_ROUTER = "Run: pip install 'langgraph-shadow[cluster]'"

_START_S = 60.0
_POLL_S = 0.1
_TAIL_LINES = 8


def check_router() -> None:
    """Finds out, before anything slow starts, whether a router can run here.

    Raises:
        ServerConfigError: vllm-router is not installed.
    """
    if find_spec("vllm_router") is None:
        problem = f"Not installed for {sys.executable}: vllm-router"
        raise ServerConfigError(problem, url=LOCAL_SERVER, remedy=INSTALL_ROUTER)


class RouterProcess:
    """One vllm-router on a loopback port, ended when the block or the owning process ends.

    Attributes:
        port: The loopback port.
        root_url: `http://127.0.0.1:PORT`.
        base_url: `root_url` with `/v1`, what an OpenAI client wants.
        log_path: Everything that the router prints.
    """

    def __init__(self, args: Sequence[str], *, port: int | None = None) -> None:
        """Describes the router; nothing is started yet.

        Args:
            args: vllm-router's flags, its servers among them; they win over the defaults.
            port: Loopback port; a free one when not given.
        """
        self.args = tuple(args)
        self.port = port or free_port()
        self.root_url = f"http://{HOST}:{self.port}"
        self.base_url = f"{self.root_url}/v1"
        self.log_path = cache_dir() / "logs" / f"router-{self.port}.log"
        own = ("--port", str(self.port), "--prometheus-port", str(free_port()))
        self._process = Kept([*VLLM_ROUTER, *DEFAULT_ARGS, *self.args, *own], self.log_path)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the router was started and has not ended."""
        return self._process.running

    def start(self) -> None:
        """Starts the router and returns when it answers.

        Raises:
            ServerConfigError: It is not installed, the port is taken, or it ended or did not
                answer in time; the log file is named.
        """
        check_router()
        require_free(self.port)
        try:
            self._process.start()
            self._wait_until_ready()
        except BaseException:  # Ctrl-C included: a half-started router must not stay behind
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the router; does nothing when it is not running."""
        self._process.stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while self.running and time.monotonic() < deadline:
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{self.base_url}/models", trust_env=False).is_success:
                    return
            time.sleep(_POLL_S)
        tail = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "\n".join(tail[-_TAIL_LINES:])
        problem = "vllm-router ended" if not self.running else "vllm-router did not answer in time"
        remedy = f"The whole log is in {self.log_path}; it says:\n{shown}"
        raise ServerConfigError(problem, url=self.root_url, remedy=remedy)
