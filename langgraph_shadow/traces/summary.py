"""A recorded run in numbers: how much of its prompts was reusable, and how much was reused."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.traces.breaks import Step, TracedBreak, breaks_of, replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_shadow.alignment.render import Renderer
    from langgraph_shadow.traces.reader import UnknownRequest
    from langgraph_shadow.traces.recording import Format, Recording
    from langgraph_shadow.trunk.model import TrunkKey


@dataclass(frozen=True, slots=True)
class Summary:
    """What the requests of a run, or of one line of it, come to.

    Attributes:
        requests: Model calls whose prompts are known.
        unknown: Model calls whose prompts are not.
        breaks: Breaks.
        prompt_tokens: Tokens of all known prompts; None where they were not recorded or rendered.
        reusable_share: Share (0 to 1) of the prompts that the call before each had computed.
        reused_share: Share of the recorded prompt tokens that came from the cache; None when the
            run recorded none.
        lost_tokens: Tokens computed again because of breaks; None when that cannot be said.
    """

    requests: int
    unknown: int
    breaks: int
    prompt_tokens: int | None
    reusable_share: float | None
    reused_share: float | None
    lost_tokens: int | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """A recorded run, replayed.

    Attributes:
        format: What the file held.
        steps: One per request, in the order they were sent.
        unknown: Model calls whose prompts the file does not hold.
    """

    format: Format
    steps: tuple[Step, ...]
    unknown: tuple[UnknownRequest, ...]

    @property
    def breaks(self) -> list[TracedBreak]:
        """The breaks."""
        return breaks_of(self.steps)

    @property
    def summary(self) -> Summary:
        """The whole run."""
        return _summary(self.steps, self.unknown)

    @property
    def lines(self) -> dict[TrunkKey, tuple[Step, ...]]:
        """The steps of each line, in the order of the lines' first requests."""
        found: dict[TrunkKey, list[Step]] = defaultdict(list)
        for step in self.steps:
            found[step.request.trunk.key].append(step)
        return {key: tuple(steps) for key, steps in found.items()}

    def row(self) -> dict[str, Any]:
        """The analysis as plain JSON values."""
        return {
            "format": self.format,
            "requests": len(self.steps),
            "breaks": [found.row() for found in self.breaks],
            "unknown": [
                {"line": u.line, "thread": u.key.thread, "node": u.key.node, "reason": u.reason}
                for u in self.unknown
            ],
            "summary": asdict(self.summary),
            "lines": [
                {
                    "thread": key.thread,
                    "namespace": key.namespace,
                    "node": key.node,
                    **asdict(_summary(steps, [u for u in self.unknown if u.key == key])),
                }
                for key, steps in self.lines.items()
            ],
        }


async def analyse(
    recording: Recording, *, renderer: Renderer | None = None, block_size: int = 1
) -> Analysis:
    """Replay a recorded run; arguments as for `replay`."""
    steps = await replay(recording.requests, renderer=renderer, block_size=block_size)
    return Analysis(recording.format, tuple(steps), recording.unknown)


def _summary(steps: Sequence[Step], unknown: Sequence[UnknownRequest]) -> Summary:
    in_tokens = bool(steps) and all(s.in_tokens for s in steps)
    size = sum(s.size for s in steps)
    # Sizes in different units are never added up; then each request counts the same.
    weighted = in_tokens or not any(s.in_tokens for s in steps)
    weights = [s.size if weighted else 1 for s in steps]
    reusable = sum(s.reusable * w for s, w in zip(steps, weights, strict=True))
    counted = [
        (s.request.prompt_tokens, s.request.cached_tokens)
        for s in steps
        if s.request.prompt_tokens and s.request.cached_tokens is not None
    ]
    asked = sum(prompt or 0 for prompt, _ in counted)
    losses = [s.lost_tokens for s in steps if s.report is not None]
    return Summary(
        requests=len(steps),
        unknown=len(unknown),
        breaks=len(losses),
        prompt_tokens=size if in_tokens else None,
        reusable_share=round(reusable / sum(weights), 4) if sum(weights) else None,
        reused_share=round(sum(c or 0 for _, c in counted) / asked, 4) if asked else None,
        lost_tokens=None if None in losses else sum(n for n in losses if n is not None),
    )
