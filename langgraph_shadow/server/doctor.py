"""Is this server set up so that shadows are cheap?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from langgraph_shadow.alignment.render import RendererUnavailableError
from langgraph_shadow.alignment.render_server import ServerRenderer
from langgraph_shadow.alignment.survey import Surveyed, survey, turns_knob, usable_variant
from langgraph_shadow.errors import AlignmentError, ServerConfigError
from langgraph_shadow.server import checks, probes
from langgraph_shadow.server.client import TIMEOUT_S, ServerClient
from langgraph_shadow.server.findings import Examination, Finding
from langgraph_shadow.server.served import ServedModel, choose, read_metrics, served_models

if TYPE_CHECKING:
    from langgraph_shadow.alignment.render import Renderer
    from langgraph_shadow.server.metrics import ServerMetrics
    from langgraph_shadow.trunk.model import Trunk

__all__ = ["CheckedServer", "Examination", "Finding", "check_server", "examine"]


@dataclass(frozen=True, slots=True)
class CheckedServer:
    """A server on which shadows are cheap.

    Attributes:
        base_url: The address for `ChatOpenAI`, which ends in `/v1`.
        model: The model to ask.
        block_size: Tokens per block; None when the server does not say.
    """

    base_url: str
    model: str
    block_size: int | None


async def check_server(
    url: str, *, model: str | None = None, api_key: str | None = None, timeout: float = TIMEOUT_S
) -> CheckedServer:
    """Make sure that shadows are cheap on a server. Sends two short requests.

    Args:
        url: The server, with or without `/v1`.
        model: The model wanted; the first one served when left out.
        api_key: The key; `$LANGGRAPH_SHADOW_API_KEY` when left out.
        timeout: Seconds for one request.

    Raises:
        ServerConfigError: No server or no such model there, no prefix caching, or no report of
            cached tokens; the message names the flag.
    """
    async with ServerClient(url, api_key=api_key, timeout=timeout) as server:
        chosen = choose(await served_models(server), model, url=server.base_url)
        metrics = await _metrics(server)
        line = await probes.probe_trunk(None, chosen, tools=False, metrics=metrics)
        await probes.send_trunk(server, line)
        second = await probes.send_trunk(server, line)
        if second.prompt is None:
            problem = f"It answers no chat completion (HTTP {second.reply.status})"
            raise ServerConfigError(problem, url=server.base_url, remedy=second.reply.problem)
        found = [checks.prefix_caching(metrics), checks.reporting(second, None)]
        if second.cached == 0:
            detail = "A prompt that was sent twice is not cached."
            found.append(Finding("prefix caching", "fail", detail, checks.ENABLE_CACHING))
        failed = next((f for f in found if f.status == "fail"), None)
        if failed is not None:
            problem = failed.detail.removesuffix(".")
            raise ServerConfigError(problem, url=server.base_url, remedy=failed.change)
        size = metrics.block_size if metrics else None
        return CheckedServer(server.base_url, chosen.name, size)


async def examine(
    url: str, *, model: str | None = None, api_key: str | None = None, timeout: float = TIMEOUT_S
) -> Examination:
    """Look a server over, and say of each finding what to change.

    Renders a few hundred short prompts and generates one token for each of half a dozen requests.

    Args:
        url: The server, with or without `/v1`.
        model: The model wanted; the first one served when left out.
        api_key: The key; `$LANGGRAPH_SHADOW_API_KEY` when left out.
        timeout: Seconds for one request.

    Raises:
        ServerConfigError: `url` is no address.
    """
    async with ServerClient(url, api_key=api_key, timeout=timeout) as server:
        try:
            served = await served_models(server)
            chosen = choose(served, model, url=server.base_url)
        except ServerConfigError as error:
            return Examination(server.root_url, (_unreachable(error),))
        findings = [
            Finding("reachable", "ok", server.base_url),
            checks.version(await server.get("/version")),
            checks.models(served, chosen),
        ]
        try:
            findings += await _examined(server, chosen)
        except ServerConfigError as error:
            findings.append(_unreachable(error))
        return Examination(server.root_url, tuple(findings))


async def _examined(server: ServerClient, model: ServedModel) -> list[Finding]:
    metrics = await _metrics(server)
    renderer = ServerRenderer(server.post, model=model.name)
    surveyed, parallel, knob, unrendered = await _surveyed(renderer, model.name)
    rendered = renderer if surveyed is not None else None
    usable = surveyed is None or surveyed.usable
    line = await probes.probe_trunk(
        rendered if usable else None, model, tools=usable, parallel=parallel, metrics=metrics
    )
    first = await probes.send_trunk(server, line)
    before = await _metrics(server)
    second = await probes.send_trunk(server, line)
    after = await _metrics(server)
    hits = after.prefix_cache_hits - before.prefix_cache_hits if before and after else None
    findings = [
        checks.prefix_caching(metrics),
        checks.block_size(metrics),
        checks.reporting(second, hits),
        checks.cache_rule(second, metrics),
    ]
    if usable:
        counts = await probes.tokens_with_and_without_tools(rendered, line) if rendered else None
        findings.append(checks.tools_kept(first, counts))
        auto = await probes.send_trunk(server, line, tool_choice="auto")
        findings.append(checks.tool_calls(auto))
    findings.append(
        checks.priority(
            await probes.send_with_priority(server, model.name),
            await server.get("/server_info?config_format=json"),
        )
    )
    if surveyed is None:
        detail = f"{unrendered}. Branches go as a plain user turn, and nothing is proved."
        findings.append(Finding("template", "warn", detail, checks.PASS_TOKENIZE))
        return findings
    findings.append(checks.template(surveyed))
    if surveyed.usable:
        findings += [checks.in_loop(surveyed), checks.across_turns(surveyed, knob)]
        findings += await _prefixes(server, line, renderer, metrics)
    return findings


async def _surveyed(
    renderer: ServerRenderer, model: str
) -> tuple[Surveyed | None, bool, str | None, str]:
    """The survey, whether parallel calls are taken, the knob for turns, or why there is none."""
    try:
        surveyed = await survey(model, lambda _: renderer, model=model)
        variant = await usable_variant(lambda _: renderer, model=model)
        parallel = not isinstance(variant, str) and variant[1]
        knob = None
        if surveyed.stable_across_turns is False:
            knob = await turns_knob(renderer, parallel=parallel, model=model)
    except RendererUnavailableError as error:
        return None, True, None, error.reason
    return surveyed, parallel, knob, ""


async def _prefixes(
    server: ServerClient, line: Trunk, renderer: Renderer, metrics: ServerMetrics | None
) -> list[Finding]:
    """A branch at the trunk's end, and a prompt that leaves the trunk early."""
    size = (metrics.block_size if metrics else None) or 1
    try:
        branch = await probes.send_branch(server, line, renderer, block_size=size)
    except AlignmentError as error:
        return [Finding("branch", "fail", error.reason, "Serve another chat template.")]
    found = [checks.shared("branch", branch, metrics)]
    try:
        shorter = await probes.send_shorter(server, line, renderer, block_size=size)
    except AlignmentError as error:
        return [*found, Finding("shorter prefix", "unknown", error.reason)]
    return [*found, checks.shared("shorter prefix", shorter, metrics)]


async def _metrics(server: ServerClient) -> ServerMetrics | None:
    try:
        return await read_metrics(server)
    except ServerConfigError:
        return None


def _unreachable(error: ServerConfigError) -> Finding:
    detail = str(error).removesuffix(f". {error.remedy}")
    return Finding("reachable", "fail", detail, error.remedy)
