"""From what was read and measured to findings. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_shadow.alignment.blocks import predicted_cached
from langgraph_shadow.server.findings import Finding

if TYPE_CHECKING:
    from langgraph_shadow.alignment.survey import Surveyed
    from langgraph_shadow.server.client import Reply
    from langgraph_shadow.server.metrics import ServerMetrics
    from langgraph_shadow.server.probes import Probe, Usage
    from langgraph_shadow.server.served import ServedModel

ENABLE_CACHING = "Start vLLM with --enable-prefix-caching (without --no-enable-prefix-caching)."
ENABLE_REPORTING = "Start vLLM with --enable-prompt-tokens-details."
PASS_METRICS = "Let /metrics be read beside /v1; behind a router, ask one replica."
PASS_TOKENIZE = "Let /tokenize be reached beside /v1; a router or proxy must pass it through."

_BAD_REQUEST = 400


def version(reply: Reply) -> Finding:
    """Which server it is."""
    said = reply.body.get("version")
    if reply.ok and said:
        return Finding("version", "ok", f"vLLM {said}")
    return Finding("version", "unknown", "The server has no /version; it may not be vLLM.")


def models(served: tuple[ServedModel, ...], chosen: ServedModel) -> Finding:
    """What is served, and which of it the rest is about."""
    names = ", ".join(m.name for m in served)
    length = f", {chosen.max_model_len} tokens at most" if chosen.max_model_len else ""
    detail = f"{names}; asked: {chosen.name}{length}"
    if chosen.parent:
        detail += f" (a LoRA adapter of {chosen.parent}: its blocks are its own)"
    return Finding("models", "ok", detail)


def prefix_caching(metrics: ServerMetrics | None) -> Finding:
    """Whether blocks are reused at all, as the server says."""
    check = "prefix caching"
    if metrics is None or metrics.enable_prefix_caching is None:
        return Finding(check, "unknown", "The server does not say.", PASS_METRICS)
    if metrics.enable_prefix_caching:
        return Finding(check, "ok", "on")
    detail = "Prefix caching is off, so that every branch computes its whole prompt."
    return Finding(check, "fail", detail, ENABLE_CACHING)


def block_size(metrics: ServerMetrics | None) -> Finding:
    """Tokens per block."""
    if metrics is None or metrics.block_size is None:
        detail = "The server does not say, so that nothing can be predicted."
        return Finding("block size", "warn", detail, PASS_METRICS)
    return Finding("block size", "ok", f"{metrics.block_size} tokens")


def reporting(second: Usage, hits: int | None) -> Finding:
    """Whether the server reports cached tokens.

    Args:
        second: A request that was sent for the second time.
        hits: Tokens that the server's own counter added meanwhile; None when it has none.
    """
    check = "cached tokens reported"
    if second.prompt is None:
        return _refused(check, second)
    if second.cached is not None:
        return Finding(check, "ok", "in usage.prompt_tokens_details")
    detail = "Cached tokens are not reported, so that no prediction can be checked."
    if hits == 0:
        detail += " Nothing was cached either."
    return Finding(check, "fail", detail, ENABLE_REPORTING)


def cache_rule(second: Usage, metrics: ServerMetrics | None) -> Finding:
    """Whether a prompt sent twice is cached up to its last whole block."""
    check = "same prompt twice"
    size = metrics.block_size if metrics else None
    if second.prompt is None:
        return _refused(check, second)
    if second.cached is None or size is None:
        return Finding(check, "unknown", "Cached tokens or the block size are not reported.")
    expected = predicted_cached(second.prompt, second.prompt, size)
    return _hit(check, second, expected, metrics)


def shared(check: str, probe: Probe, metrics: ServerMetrics | None) -> Finding:
    """Whether a prompt that shares a prefix with another is cached as predicted."""
    usage = probe.usage
    if usage.prompt is None:
        return _refused(check, usage)
    if usage.cached is None or metrics is None or metrics.block_size is None:
        detail = f"{probe.name}; cached tokens or the block size are not reported."
        return Finding(check, "unknown", detail)
    if usage.prompt != probe.tokens:
        detail = f"{usage.prompt} tokens where {probe.tokens} were rendered: another prompt."
        return Finding(check, "unknown", detail)
    return _hit(check, usage, probe.predicted, metrics, name=probe.name)


def tools_kept(usage: Usage, counts: tuple[int, int] | None) -> Finding:
    """Whether `tool_choice="none"` leaves the tools in the prompt, by counting tokens.

    Args:
        usage: A request with tools and `tool_choice="none"`.
        counts: Tokens of its prompt with tools and without, by `/tokenize`.
    """
    check = "tools kept"
    if usage.prompt is None:
        return _refused(check, usage)
    if counts is None:
        return Finding(check, "unknown", "The prompt cannot be counted.", PASS_TOKENIZE)
    with_tools, without = counts
    if with_tools == without:
        detail = "The chat template renders no tools, so that the agent's model never sees them."
        return Finding(check, "warn", detail, "Start vLLM with a template that renders tools.")
    said = f"{usage.prompt} tokens; {with_tools} with tools, {without} without"
    if usage.prompt == with_tools:
        return Finding(check, "ok", said)
    if usage.prompt == without:
        detail = f"tool_choice='none' drops them, and with them the prefix ({said})."
        change = "Start vLLM without --exclude-tools-when-tool-choice-none."
        return Finding(check, "fail", detail, change)
    return Finding(check, "unknown", f"The counts do not agree: {said}.")


def tool_calls(usage: Usage) -> Finding:
    """Whether the orchestrator can call tools."""
    check = "tool calls"
    if usage.prompt is not None:
        return Finding(check, "ok", "tool_choice='auto' is taken")
    if usage.reply.status == _BAD_REQUEST and "auto" in usage.reply.problem:
        change = "Start vLLM with --enable-auto-tool-choice and the model's --tool-call-parser."
        return Finding(check, "warn", "The agent's tool_choice='auto' is refused.", change)
    return _refused(check, usage)


def priority(asked: Reply, info: Reply) -> Finding:
    """Whether branches can be scheduled after the orchestrator.

    Args:
        asked: The answer to a request with a priority.
        info: The answer of `/server_info`, which only a server in development mode has.
    """
    check = "priority scheduling"
    change = "Start vLLM with --scheduling-policy priority."
    policy = _policy(info.body)
    if policy == "priority":
        return Finding(check, "ok", "on")
    if policy is not None or (not asked.ok and "priority" in asked.problem.lower()):
        detail = "Off: a branch queues like every other request."
        return Finding(check, "warn", detail, change)
    if not asked.ok:
        return Finding(check, "unknown", f"HTTP {asked.status}: {asked.problem}")
    detail = "A priority is accepted; whether it is acted upon cannot be seen from outside."
    return Finding(check, "unknown", detail, change)


def template(found: Surveyed) -> Finding:
    """Which carrier the ladder picks, and what it keeps."""
    if not found.usable:
        change = "Serve a model or a chat template that renders tool calls and tool results."
        return Finding("template", "fail", f"Not usable: {found.reason}.", change)
    if not found.kept_through_last_tool_result or found.kept_share is None:
        change = "Serve another chat template; `langgraph-shadow template` tries one offline."
        return Finding("template", "fail", f"Nothing keeps the trunk: {found.reason}", change)
    detail = f"{found.carrier} keeps {found.kept_share:.1%} of the trunk"
    if found.carrier != "user_turn":
        detail += "; a plain user message would not"
    change = ""
    if found.knob:
        change = f"With {_knob(found.knob)} a plain user message does, too."
    return Finding("template", "ok", detail, change)


def in_loop(found: Surveyed) -> Finding:
    """Whether the orchestrator itself extends its prompt from call to call."""
    check = "agent's loop"
    if found.stable_in_loop is None:
        return Finding(check, "unknown", "A shorter prompt of the loop cannot be rendered.")
    if found.stable_in_loop:
        return Finding(check, "ok", "each prompt extends the one before it")
    detail = "The template rewrites earlier messages, so that the agent recomputes on every call."
    return Finding(check, "warn", detail, "Serve a chat template that only appends.")


def across_turns(found: Surveyed, knob: str | None) -> Finding:
    """Whether the first prompt of a new user turn extends the one before it."""
    check = "new user turn"
    if found.stable_across_turns is None:
        return Finding(check, "unknown", "A shorter prompt cannot be rendered.")
    if found.stable_across_turns:
        return Finding(check, "ok", "extends the prompt before it")
    detail = (
        "The template rewrites the finished turn, mostly its reasoning, once a new one is there."
    )
    change = (
        f"Send {_knob(knob)} with every request, from the first one on."
        if knob
        else "No template argument is known to help; expect one recomputation per user turn."
    )
    return Finding(check, "warn", detail, change)


def _hit(
    check: str, usage: Usage, expected: int, metrics: ServerMetrics | None, *, name: str = ""
) -> Finding:
    by = f"{name}: " if name else ""
    detail = f"{by}{usage.cached} of {usage.prompt} tokens cached, {expected} predicted"
    cached = usage.cached or 0
    if cached >= expected:
        return Finding(check, "ok", detail)
    if metrics is not None and metrics.enable_prefix_caching is False:
        return Finding(check, "fail", detail, ENABLE_CACHING)
    why = _retention(metrics)
    detail += f"; an equal prefix is no guarantee here ({why})"
    change = (
        "Retain more: --prefix-cache-retention-interval with a multiple of the block size. "
        "Judge costs by the cached tokens in the ledger, not by predictions."
    )
    return Finding(check, "warn", detail, change)


def _retention(metrics: ServerMetrics | None) -> str:
    """What the cache's settings say about why less is kept than was computed."""
    config = metrics.cache_config if metrics else {}
    named = {
        "sliding_window": "sliding window",
        "mamba_block_size": "Mamba blocks of",
        "cache_hit_alignment_tokens": "hits are multiples of",
    }
    said = [
        f"{words} {config[name]}"
        for name, words in named.items()
        if config.get(name) not in (None, "None", "")
    ]
    return ", ".join(said) or "hybrid or sliding-window layers, or speculative decoding"


def _policy(info: Any) -> str | None:
    config = info.get("vllm_config") if isinstance(info, dict) else None
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    policy = scheduler.get("policy") if isinstance(scheduler, dict) else None
    return str(policy) if policy else None


def _refused(check: str, usage: Usage) -> Finding:
    detail = f"The server refused the request (HTTP {usage.reply.status}): {usage.reply.problem}"
    return Finding(check, "unknown", detail)


def _knob(name: str) -> str:
    """A template argument as it is sent."""
    key, _, value = name.partition("=")
    return f'chat_template_kwargs={{"{key}": {value or "true"}}}'
