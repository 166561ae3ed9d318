"""A recorded run replayed through a guard: its breaks, and what each request could reuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langgraph_shadow.alignment.blocks import common_prefix, predicted_cached
from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.guard.fields import probe_fields
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.price import price
from langgraph_shadow.trunk.model import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_shadow.alignment.render import Renderer
    from langgraph_shadow.guard.report import Report
    from langgraph_shadow.traces.reader import TracedRequest
    from langgraph_shadow.trunk.model import Trunk, TrunkKey


@dataclass(frozen=True, slots=True)
class Step:
    """One request beside the one before it in its line.

    Attributes:
        request: The request.
        before: The one before it; None for a line's first.
        report: The break, when it is one.
        size: The prompt's size: tokens when they were recorded or rendered, else characters.
        reusable: Share (0 to 1) of the prompt that the request before it had already computed.
        in_tokens: Whether `size` is in tokens.
        exact: Whether `reusable` comes from rendered tokens and the block rule; otherwise it is
            the share of the messages' characters.
    """

    request: TracedRequest
    before: TracedRequest | None
    report: Report | None
    size: int
    reusable: float
    in_tokens: bool
    exact: bool

    @property
    def reused(self) -> float | None:
        """Share of the prompt that the server took from its cache; None when not recorded."""
        prompt, cached = self.request.prompt_tokens, self.request.cached_tokens
        return cached / prompt if prompt and cached is not None else None

    @property
    def lost_tokens(self) -> int | None:
        """Tokens of the request before it that had to be computed again, because of the break."""
        if self.report is None or self.before is None:
            return None
        if self.report.lost_tokens is not None:
            return self.report.lost_tokens
        prompt = self.before.prompt_tokens
        return None if prompt is None else round(prompt * self.report.lost_share)


@dataclass(frozen=True, slots=True)
class TracedBreak:
    """A break, and the recorded request that made it.

    Attributes:
        request: The request.
        report: What broke, how and where.
        lost_tokens: Tokens that had to be computed again: priced, or estimated from the tokens
            that were recorded; None when neither can be had.
    """

    request: TracedRequest
    report: Report
    lost_tokens: int | None = None

    @property
    def cost(self) -> str:
        """What had to be computed again, in words."""
        if self.report.lost_tokens is not None:
            return f"{self.report.lost_tokens} tokens"
        if self.lost_tokens is not None:
            return f"about {self.lost_tokens} tokens"
        return f"about {self.report.lost_share:.0%}"

    @property
    def cached(self) -> str:
        """What the server took from its cache all the same, in words; empty when not recorded."""
        count, prompt = self.request.cached_tokens, self.request.prompt_tokens
        return "" if count is None else f"{count} of {prompt}" if prompt else str(count)

    def row(self) -> dict[str, Any]:
        """The break as plain JSON values."""
        report, request = self.report, self.request
        return {
            "index": request.index,
            "line": request.line,
            "thread": report.key.thread,
            "namespace": report.key.namespace,
            "node": report.key.node,
            "kind": report.kind,
            "path": report.path,
            "offset": report.offset,
            "before": report.before,
            "after": report.after,
            "lost_tokens": self.lost_tokens,
            "lost_share": round(report.lost_share, 4),
            "estimated": report.lost_tokens is None,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "repair": report.repair,
        }


async def find_breaks(
    requests: Sequence[TracedRequest],
    *,
    renderer: Renderer | None = None,
    block_size: int = 1,
) -> list[TracedBreak]:
    """Replay requests through a guard; see `replay`."""
    return breaks_of(await replay(requests, renderer=renderer, block_size=block_size))


def breaks_of(steps: Sequence[Step]) -> list[TracedBreak]:
    """The breaks among the steps."""
    return [TracedBreak(s.request, s.report, s.lost_tokens) for s in steps if s.report is not None]


async def replay(
    requests: Sequence[TracedRequest],
    *,
    renderer: Renderer | None = None,
    block_size: int = 1,
) -> list[Step]:
    """Replay requests through a guard.

    Args:
        requests: The requests, in the order they were sent.
        renderer: Prices each break, drops those that do not reach the prompt, and tells the guard
            which fields the template renders. Without one, breaks are judged by rule.
        block_size: The server's block size (tokens); 1 counts single tokens.
    """
    guard = Guard(mode="observe", max_threads=max(1, len(requests)))
    newest: dict[TrunkKey, TracedRequest] = {}
    probed: set[str] = set()
    steps: list[Step] = []
    for request in requests:
        trunk = request.trunk
        if renderer is not None and trunk.model not in probed:
            probed.add(trunk.model)
            rules = await probe_fields(renderer, trunk.model, fields=trunk.fields)
            guard.learn(trunk.model, rules)
        before, newest[trunk.key] = newest.get(trunk.key), request
        report = guard.check(trunk)
        if report is not None and renderer is not None and before is not None:
            report = await price(report, before.trunk, trunk, renderer, block_size=block_size)
        steps.append(await _step(request, before, report, renderer, block_size))
    return steps


async def _step(
    request: TracedRequest,
    before: TracedRequest | None,
    report: Report | None,
    renderer: Renderer | None,
    block_size: int,
) -> Step:
    if renderer is not None and renderer.unit == "tokens":
        try:
            size, reusable = await _rendered(request, before, report, renderer, block_size)
            return Step(request, before, report, size, reusable, in_tokens=True, exact=True)
        except AlignmentError:
            pass
    recorded = request.prompt_tokens
    size = recorded if recorded is not None else _size(request.trunk)
    reusable = 0.0 if before is None else _share(request.trunk, before.trunk, report)
    in_tokens = recorded is not None
    return Step(request, before, report, size, reusable, in_tokens=in_tokens, exact=False)


async def _rendered(
    request: TracedRequest,
    before: TracedRequest | None,
    report: Report | None,
    renderer: Renderer,
    block_size: int,
) -> tuple[int, float]:
    new = (await renderer.render(Prompt.of(request.trunk))).items
    if before is None or not new:
        return len(new), 0.0
    if report is not None and report.kind == "isolation":
        return len(new), 0.0
    known = await _closed(before.trunk, renderer)
    kept = common_prefix(known, new)
    if kept == len(known) and (answered := _answered(request.trunk, before.trunk)) is not None:
        # The server wrote the answer itself, so that its blocks are in the cache, too.
        kept = max(kept, common_prefix(await _closed(answered, renderer), new))
    return len(new), predicted_cached(kept, len(new), block_size) / len(new)


async def _closed(trunk: Trunk, renderer: Renderer) -> tuple[int, ...] | str:
    """A trunk rendered without the generation prompt, whose place the answer takes."""
    return (await renderer.render(replace(Prompt.of(trunk), add_generation_prompt=False))).items


def _answered(trunk: Trunk, before: Trunk) -> Trunk | None:
    """The trunk up to the answer that came after `before`, or None when none is in it."""
    end = len(before.messages)
    if end < len(trunk.messages) and trunk.messages[end].get("role") == "assistant":
        return trunk.prefix(end + 1)
    return None


def _share(trunk: Trunk, before: Trunk, report: Report | None) -> float:
    """The reusable share of a trunk, in characters."""
    if report is not None:
        kept = _size(before) * (1 - report.lost_share)
    else:
        kept = _size(_answered(trunk, before) or before)
    return min(1.0, kept / max(1, _size(trunk)))


def _size(trunk: Trunk) -> int:
    return len(canonical(trunk.tools)) + sum(len(canonical(m)) for m in trunk.messages)
