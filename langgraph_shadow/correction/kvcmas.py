"""KVCMAS: corrections predicted from anchors, where the context is familiar enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from langgraph_shadow.correction.anchors import Anchor, anchor, token_weights, value_distances
from langgraph_shadow.correction.lowrank import fused
from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Span, rows

OLDEST = 5
"""The anchor that leaves a full pool is the least used one of so many oldest."""

USED_MASS = 0.9
"""Anchors that make up this share of the similarity count as used."""


@dataclass(slots=True, eq=False)
class _Kept:
    anchor: Anchor
    used: int = 0


@dataclass(slots=True, eq=False)
class _Pool:
    kept: list[_Kept] = field(default_factory=list)

    def covering(self, length: int) -> list[_Kept]:
        return [kept for kept in self.kept if len(kept.anchor) >= length]

    def add(self, new: Anchor, limit: int) -> None:
        self.kept.append(_Kept(new))
        if len(self.kept) > limit:
            self.kept.remove(min(self.kept[:OLDEST], key=lambda kept: kept.used))


class Kvcmas:
    """The context's cache is kept in a canonical frame and corrected once per hop.

    A dense hop leaves an anchor. A later context that is near enough to some anchors takes over
    the rotated cache plus the anchors' differences, weighted for each token by how near it is, as
    one low-rank product a layer. The caller puts the result in place of the cache, so that the
    next hop is corrected relative to it; the first agent's cache is its own prefill.

    Attributes:
        gate: Share of the largest possible entropy above which a hop is dense, 0 to 1; `None`
            corrects always, and keeps no anchors of its own.
        dense_hops: Hops that were computed.
        hops: All hops.
    """

    def __init__(
        self,
        *,
        rank: int = 32,
        base_rank: int = 32,
        gate: float | None = 0.3,
        pool: int = 10,
        seed: int = 0,
        anchors: Mapping[str, Sequence[Anchor]] | None = None,
        name: str | None = None,
    ) -> None:
        """Begin with the anchors that are given, by agent.

        Args:
            rank: Of the differences.
            base_rank: Of the stored caches that contexts are compared with.
            gate: See the class.
            pool: Anchors kept for each agent.
            seed: Of the range finder.
            anchors: Anchors to begin with, by the taking agent's name.
            name: What it is called in tables.
        """
        self.gate = gate
        self.hops = 0
        self.dense_hops = 0
        self._rank = rank
        self._base_rank = base_rank
        self._limit = pool
        self._seed = seed
        self._name = name or f"KVCMAS r={rank}"
        self._pools: dict[str, _Pool] = {}
        for agent, given in (anchors or {}).items():
            self._pools[agent] = _Pool([_Kept(one) for one in given])

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return self._name

    def apply(self, hop: Hop) -> Span:
        """The corrected cache, or the exact one where the gate asks for a dense hop."""
        self.hops += 1
        pool = self._pools.setdefault(hop.agent, _Pool())
        base = hop.source.moved(0, hop.model.rope)
        usable = pool.covering(len(base))
        if self.gate is not None and self._unfamiliar(usable, base, self.gate):
            self.dense_hops += 1
            exact = hop.dense()
            new = anchor(
                base,
                exact,
                hop.model.rope,
                rank=self._rank,
                base_rank=self._base_rank,
                seed=self._seed,
            )
            pool.add(new, self._limit)
            return exact
        if not usable:
            return hop.rotated()
        corrected = _corrected(base, [kept.anchor for kept in usable])
        return corrected.moved(hop.offset, hop.model.rope)

    def anchors(self, agent: str) -> tuple[Anchor, ...]:
        """The anchors kept for an agent, oldest first."""
        return tuple(kept.anchor for kept in self._pools.get(agent, _Pool()).kept)

    def own_numbers(self, hop: Hop) -> int:
        """A weight for each token and anchor, of keys and of values."""
        return 2 * len(hop.tokens) * len(self.anchors(hop.agent))

    def stored_numbers(self) -> int:
        """Numbers in all anchors of all agents."""
        return sum(one.numbers() for agent in self._pools for one in self.anchors(agent))

    def _unfamiliar(self, usable: list[_Kept], base: Span, gate: float) -> bool:
        """Whether a context is about equally far from all anchors; counts those it is near to."""
        if len(usable) < 2:
            return True
        bases = [kept.anchor.base_values for kept in usable]
        likeness = value_distances(bases, rows(base.values)).neg().softmax(dim=0)
        entropy = -(likeness * likeness.clamp_min(1e-40).log2()).sum().item()
        if entropy > gate * math.log2(len(usable)):
            return True
        order = likeness.argsort(descending=True)
        before = likeness[order].cumsum(dim=0) - likeness[order]
        for place in order[before < USED_MASS].tolist():
            usable[place].used += 1
        return False


def _corrected(base: Span, anchors: Sequence[Anchor]) -> Span:
    keys, values = rows(base.keys), rows(base.values)
    for_keys = token_weights([one.base_keys for one in anchors], keys)
    for_values = token_weights([one.base_values for one in anchors], values)
    return base.plus(
        _from_layer_1(fused([one.keys for one in anchors], for_keys)),
        _from_layer_1(fused([one.values for one in anchors], for_values)),
    )


def _from_layer_1(correction: torch.Tensor) -> torch.Tensor:
    return torch.cat((torch.zeros_like(correction[:1]), correction))
