"""`pd`: a prefill and a decode server, with and without KV return, with and without shadows."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import httpx2
from langchain_core.runnables import RunnableConfig

from langgraph_shadow.bench.looping import Looping, looping_agent, search_tool
from langgraph_shadow.bench.report import Report, Row, median, ratio
from langgraph_shadow.bench.target import Target, fresh_salt
from langgraph_shadow.branches.branch import user_update
from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.runner.affinity import Affinity
from langgraph_shadow.server.kept import Kept
from langgraph_shadow.server.local import HOST, free_port
from langgraph_shadow.server.metrics import fetch_metrics
from langgraph_shadow.server.pair import PrefillDecode, Transfer
from langgraph_shadow.server.progress import Progress, silent
from langgraph_shadow.shadow import Shadow

PROXY = Path("examples/pd_proxy.py")
BATCHES = 4
ANSWER_TOKENS = 24
TOOL_SECONDS = 1.0
DRAIN_S = 300.0
START_S = 60.0
GROUP: str | None = None
COLUMNS: Mapping[str, str] = {
    "kv_return": "KV\nreturn",
    "prefill_cache": "prefill\ncache",
    "shadows": "shadows",
    "ttft_ms": "later\nturns,\nttft ms",
    "prefill_ms": "of it\nprefill",
    "cached": "found by\nprefill",
    "computed": "prefill\ncom-\nputed",
    "read_back": "read\nback",
    "renamed": "re-\nnamed",
    "branches": "bran-\nches",
    "branch_cached": "bran-\nches,\ncached",
    "wall_s": "wall s",
}

AFFINITY = Affinity(header="X-Session-ID", conversation=True)

Shadows: TypeAlias = Literal["off", "on", "on, at decode"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the same agent.

    Attributes:
        kv_return: Whether the prefill server may read the decode server's blocks back.
        prefill_cache: Whether it has a prefix cache of its own.
        shadows: Whether branches run, and whether they go straight to the decode server.
    """

    kv_return: bool
    prefill_cache: bool
    shadows: Shadows

    @property
    def name(self) -> str:
        """What is said of it."""
        cache = _on(self.prefill_cache)
        return f"KV return {_on(self.kv_return)}, prefill cache {cache}, shadows {self.shadows}"


SERVERS: Mapping[tuple[bool, bool], tuple[Shadows, ...]] = {
    (True, False): ("off", "on", "on, at decode"),
    (False, False): ("off", "on"),
    (True, True): ("off", "on"),
}
"""What runs on which pair, by KV return and the prefill server's own cache. The first two are the
published experiment's (facts/kv-sharing.md §E1), the last is what people run."""


@dataclass(frozen=True, slots=True)
class Front:
    """The proxy in front of a pair.

    Attributes:
        url: Its address, without `/v1`.
        log: What it reports, one JSON object a line.
    """

    url: str
    log: Path

    def reports(self) -> list[dict[str, Any]]:
        """What it did so far, oldest first."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


async def run(
    model: str,
    *,
    proxy: Path = PROXY,
    batches: int = BATCHES,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run the same agent on three pairs of servers, without shadows and with them.

    Args:
        model: As for `LocalServer`.
        proxy: The conversation proxy's program.
        batches: Tool batches of the agent.
        progress: Told how the servers start.
        say: Told what is being done.

    Raises:
        ServerConfigError: The proxy is missing or does not answer, or no pair can run here.
    """
    report = Report(
        bench="pd",
        settings={"batches": batches, "tool_seconds": TOOL_SECONDS, "transfer": str(Transfer())},
        notes=[
            "Later turns of one agent; what its prefill finds is read back, or in a cache of its "
            "own. `renamed` counts turns whose tokens could not be proved to begin the prompt. The "
            "first token's time is the prefill server's whole answer and then the decode server's "
            "own first token: vLLM 0.32 puts the handle into no stream, so the proxy fetches whole "
            "answers."
        ],
    )
    for (kv_return, prefill_cache), loads in SERVERS.items():
        pair = PrefillDecode(
            model,
            transfer=Transfer(kv_return=kv_return),
            prefill_cache=prefill_cache,
            extra_args=("--enable-per-request-metrics",),
            progress=progress,
        )
        with pair:
            target = await asyncio.to_thread(Target.at, pair.decode.base_url, pair.model)
            report.server, report.versions = target.described(), {"vllm": target.version}
            for shadows in loads:
                arm = Arm(kv_return, prefill_cache, shadows)
                say(arm.name)
                flags = ("--plain-to-decode",) if shadows == "on, at decode" else ()
                with front_of(pair, proxy, *flags) as front:
                    report.rows.append(await _row(arm, pair, front, target, batches))
    report.versions |= {name: version(name) for name in ("vllm-router", "nixl")}
    report.summary = {row["arm"]: row["ttft_ms"] for row in report.rows}
    return report


@contextmanager
def front_of(pair: PrefillDecode, proxy: Path, *flags: str) -> Iterator[Front]:
    """The proxy in front of a running pair, for as long as the block runs; `flags` are its own.

    Raises:
        ServerConfigError: The proxy is missing or does not answer.
    """
    if not proxy.is_file():
        problem = f"There is no conversation proxy at {proxy}"
        remedy = "Name one with --proxy; the project's is examples/pd_proxy.py."
        raise ServerConfigError(problem, url="pd", remedy=remedy)
    port = free_port()
    command = [sys.executable, str(proxy), *pair.proxy_args, "--port", str(port), *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "proxy.log"
        with Kept(command, log):
            url = f"http://{HOST}:{port}"
            _wait_for(url)
            yield Front(url, log)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            httpx2.get(f"{url}/v1/models", trust_env=False)
        except httpx2.TransportError:
            time.sleep(0.1)
        else:
            return
    problem = "The conversation proxy did not answer"
    raise ServerConfigError(problem, url=url, remedy="Run it by hand to see what it says.")


async def _row(arm: Arm, pair: PrefillDecode, front: Front, at: Target, batches: int) -> Row:
    target = replace(at, base_url=f"{front.url}/v1")
    before = _sources(pair)
    async with target.session() as session:
        salt = {"extra_body": {"cache_salt": fresh_salt()}}
        llm = Looping(**session.settings(max_tokens=ANSWER_TOKENS, batches=batches, **salt))
        shadow = Shadow(
            llm,
            branches=[] if arm.shadows == "off" else [user_update()],
            affinity=AFFINITY,
            late="deliver",
            max_queue=None,
            max_kv_usage=None,
            timeout=DRAIN_S,
            on_event=lambda _: None,
        )
        graph = looping_agent(shadow.watch(llm), search_tool("pd", (TOOL_SECONDS,)), shadow)
        config: RunnableConfig = {"configurable": {"thread_id": "pd"}}
        start = time.perf_counter()
        question: Any = {"messages": [("user", "What is known?")]}
        await graph.ainvoke(question, config)
        wall = time.perf_counter() - start
        await shadow.drain(timeout=DRAIN_S)
        await shadow.aclose()
    after = _sources(pair)
    rows = list(shadow.ledger)
    own = [r for r in front.reports() if r["conversation"] is not None]
    return {
        "arm": arm.name,
        "kv_return": _on(arm.kv_return),
        "prefill_cache": _on(arm.prefill_cache),
        "shadows": arm.shadows,
        "ttft_ms": median(_first_token_ms(turn) for turn in own[1:]),
        "prefill_ms": median(turn["prefill_ms"] for turn in own[1:]),
        "cached": _share(own[1:]),
        "cached_per_turn": [r["prefill_cached"] for r in own],
        "computed": after["local_compute"] - before["local_compute"],
        "read_back": after["external_kv_transfer"] - before["external_kv_transfer"],
        "renamed": len({r["conversation"] for r in own}) - 1,
        "branches": len(rows),
        "branch_cached": ratio(
            sum(row.cached or 0 for row in rows), sum(row.prompt_tokens or 0 for row in rows)
        ),
        "wall_s": round(wall, 3),
    }


def _on(what: bool) -> str:
    return "on" if what else "off"


def _first_token_ms(turn: Mapping[str, Any]) -> float | None:
    decode = turn["decode_first_token_ms"]
    return None if decode is None else turn["prefill_ms"] + decode


def _share(turns: Sequence[Mapping[str, Any]]) -> float | None:
    return ratio(
        sum(t["prefill_cached"] or 0 for t in turns), sum(t["prompt_tokens"] for t in turns)
    )


def _sources(pair: PrefillDecode) -> Mapping[str, int]:
    found = fetch_metrics(pair.prefill.root_url).prompt_tokens_by_source
    return {name: found.get(name, 0) for name in ("local_compute", "external_kv_transfer")}
