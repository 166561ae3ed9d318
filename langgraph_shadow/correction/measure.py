"""Every method on every context: from the first agent to the second, and on along the chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from langgraph_shadow.correction.anchors import Anchor, anchor
from langgraph_shadow.correction.as_it_lies import AsItLies
from langgraph_shadow.correction.ceiling import Ceiling
from langgraph_shadow.correction.deviating import Deviating
from langgraph_shadow.correction.first_tokens import FirstTokens
from langgraph_shadow.correction.kvcmas import Kvcmas
from langgraph_shadow.correction.lab import Lab, Scores
from langgraph_shadow.correction.linear_map import LinearMap, Observed, fit, observe
from langgraph_shadow.correction.reuse import Reuse
from langgraph_shadow.correction.rotated import Rotated
from langgraph_shadow.correction.scoring import compare
from langgraph_shadow.correction.settings import Settings
from langgraph_shadow.correction.spans import Span, difference

KEPT = "role of the agent before"
ROLE_LAST = "role last"


@dataclass(frozen=True, slots=True)
class Method:
    """A way of reuse, and what kind of row it is.

    Attributes:
        reuse: The method.
        kind: `method` can be run; `ceiling` looks at the exact cache; `sanity` must be exact.
        chained: Whether it is followed along the whole chain.
    """

    reuse: Reuse
    kind: str = "method"
    chained: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One method at one agent on one context.

    Attributes:
        method: Its name.
        kind: `method`, `ceiling`, `sanity` or `reference`.
        context: Which context.
        agent: Which agent, counted from 0.
        scores: KL and top-1 against the agent's exact cache.
        seconds: Of the reuse or correction; of the role's own prefill where the role is last.
        dense: Whether the cache was computed after all.
        explained: Share of ‖ΔK‖² and of ‖ΔV‖² that is gone, against rotated reuse; first hop only.
        own: Numbers that are the agent's alone when everything else stays shared.
        stored: Numbers kept beside the caches, for each agent that takes over.
    """

    method: str
    kind: str
    context: int
    agent: int
    scores: Scores
    seconds: float | None = None
    dense: bool = False
    explained: tuple[float, float] | None = None
    own: int | None = None
    stored: int = 0


@dataclass(frozen=True, slots=True)
class _Learned:
    """What one context leaves for the others at one agent."""

    anchor: Anchor
    observed: Observed


def measure(
    lab: Lab, settings: Settings, say: Callable[[str], None] = lambda _: None
) -> list[Observation]:
    """Run all methods; what a context is corrected with comes from the other contexts only."""
    found: list[Observation] = []
    agents = range(1, len(lab.prompts.roles))
    contexts = range(len(lab.prompts.contexts))
    learned: dict[tuple[int, int], _Learned] = {}
    for context in contexts:
        say(f"anchors and maps: {lab.prompts.contexts[context].name}")
        for agent in agents:
            before, after = lab.exact(context, agent - 1), lab.exact(context, agent)
            kept = anchor(
                before,
                after,
                lab.model.rope,
                rank=settings.rank,
                base_rank=settings.rank,
                seed=settings.seed,
            )
            learned[context, agent] = _Learned(kept, observe(before, after, lab.model.rope))
    gated = Kvcmas(
        rank=settings.rank,
        base_rank=settings.rank,
        gate=settings.gate,
        seed=settings.seed,
        name="KVCMAS, gated",
    )
    for context in contexts:
        say(f"methods: {lab.prompts.contexts[context].name}")
        others = [other for other in contexts if other != context]
        methods = [
            *_plain(settings),
            *_learning(lab, settings, learned, others),
            Method(gated, chained=True),
        ]
        found += [_kept(lab, context, agent) for agent in agents]
        lab.time_prefill(context)
        for method in methods:
            found += along(lab, method, context)
        found += _role_last(lab, context)
    return found


def _plain(settings: Settings) -> list[Method]:
    return [
        Method(AsItLies()),
        Method(Rotated(), chained=True),
        Method(FirstTokens(settings.first)),
        Method(Deviating(settings.share), chained=True),
        Method(Deviating(1.0), kind="sanity"),
        Method(Ceiling(settings.low_rank), kind="ceiling", chained=True),
        Method(Ceiling(settings.rank), kind="ceiling", chained=True),
        Method(Ceiling(None), kind="sanity"),
    ]


def _learning(
    lab: Lab, settings: Settings, learned: dict[tuple[int, int], _Learned], others: list[int]
) -> list[Method]:
    if not others:
        return []
    agents = {n: role.name for n, role in enumerate(lab.prompts.roles) if n > 0}
    anchors = {name: [learned[o, n].anchor for o in others] for n, name in agents.items()}
    nearby = {name: given[:1] for name, given in anchors.items()}
    seen = {name: [learned[o, n].observed for o in others] for n, name in agents.items()}
    maps = {
        name: fit(given, rank=settings.rank, ridge=settings.ridge) for name, given in seen.items()
    }
    all_name = f"KVCMAS rule, anchors: {len(others)}"
    return [
        Method(Kvcmas(gate=None, anchors=nearby, name="KVCMAS rule, anchors: 1")),
        Method(Kvcmas(gate=None, anchors=anchors, name=all_name), chained=True),
        Method(LinearMap(maps, settings.rank), chained=True),
    ]


def along(lab: Lab, method: Method, context: int) -> Iterator[Observation]:
    """One method from the first agent on; the next hop starts from what it made of this one."""
    reuse = method.reuse
    served = len(lab.prompts.roles) - 1
    source = lab.exact(context, 0)
    for agent in range(1, served + 1 if method.chained else 2):
        hop = lab.hop(context, agent, source)
        before = _dense_hops(reuse)
        span, seconds = lab.timed(lambda hop=hop: reuse.apply(hop))  # type: ignore[misc]
        dense = _dense_hops(reuse) > before
        yield Observation(
            method=reuse.name,
            kind=method.kind,
            context=context,
            agent=agent,
            scores=lab.score(context, agent, hop.prefix.then(span)),
            # A dense hop and a ceiling look the exact cache up, which no server could.
            seconds=None if dense or isinstance(reuse, Ceiling) else seconds,
            dense=dense,
            explained=_explained(lab, context, span) if agent == 1 else None,
            own=reuse.own_numbers(hop),
            stored=reuse.stored_numbers() // served,
        )
        source = span


def _dense_hops(reuse: Reuse) -> int:
    return reuse.dense_hops if isinstance(reuse, Kvcmas) else 0


def _kept(lab: Lab, context: int, agent: int) -> Observation:
    """The role's own effect: what it costs to go on with the prompt of the agent before."""
    cache = lab.prefixes[agent - 1].then(lab.exact(context, agent - 1))
    return Observation(KEPT, "reference", context, agent, lab.score(context, agent, cache))


def _role_last(lab: Lab, context: int) -> Iterator[Observation]:
    """The role behind the context: the shared cache against one prefill of the same prompt."""
    model, head = lab.model, lab.prompts.head
    tokens, text = lab.prompts.contexts[context].tokens, lab.prompts.contexts[context].continuation
    shared = model.prefill(torch.cat((head, tokens)))
    for agent, role in enumerate(lab.prompts.roles[1:], start=1):
        own, seconds = lab.timed(lambda role=role: model.prefill(role.behind, shared))  # type: ignore[misc]
        once = model.logits(torch.cat((head, tokens, role.behind, text)), None, last=len(text))
        reused = model.logits(text, shared.then(own), last=len(text))
        yield Observation(
            method=ROLE_LAST,
            kind="exact",
            context=context,
            agent=agent,
            scores=Scores(compare(once, reused)),
            seconds=seconds,
            own=len(role.behind) * model.numbers_per_token,
        )


def _explained(lab: Lab, context: int, span: Span) -> tuple[float, float]:
    """How much of the squared difference between rotated reuse and the truth is gone."""
    rope, exact = lab.model.rope, lab.exact(context, 1)
    whole = difference(exact, lab.exact(context, 0), rope)
    left = difference(exact, span, rope)
    keys, values = (
        1.0 - (rest.square().sum() / all_.square().sum().clamp_min(1e-30)).item()
        for rest, all_ in zip(left, whole, strict=True)
    )
    return keys, values
