"""The lab: exact caches of every agent for every context, and scores of others against them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.prompts import Prompts
from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.scoring import Score, compare
from langgraph_shadow.correction.spans import Span

ANSWER_TOKENS = 24
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Scores:
    """One cache, judged.

    Attributes:
        text: Over the context's true continuation.
        answer: Over the greedy answer of the exact agent, when a question is asked.
    """

    text: Score
    answer: Score | None = None


@dataclass(frozen=True, slots=True)
class _Probe:
    """Tokens to feed behind a cache, and the exact logits from a place on."""

    tokens: torch.Tensor
    counted: int
    exact: torch.Tensor


@dataclass(slots=True)
class Lab:
    """Everything that is computed once: role prompts, exact caches, exact predictions.

    Exact caches stay in host memory: contexts x agents x tokens x the cache's bytes per token.

    Attributes:
        model: The model.
        prompts: Roles and contexts.
        prefixes: The cache of each role prompt in front.
        prefill_s: Seconds of one exact prefill of each context, as `time_prefill` found them.
    """

    model: LabModel
    prompts: Prompts
    prefixes: list[Span] = field(default_factory=list)
    prefill_s: dict[int, float] = field(default_factory=dict)
    _exact: list[list[Span]] = field(default_factory=list)
    _probes: dict[tuple[int, int], list[_Probe]] = field(default_factory=dict)

    def prepare(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Compute every agent's exact cache of every context."""
        self.prefixes = [self.model.prefill(role.front) for role in self.prompts.roles]
        for context in self.prompts.contexts:
            say(f"exact caches: {context.name}")
            spans = [self.model.prefill(context.tokens, prefix) for prefix in self.prefixes]
            self._exact.append([span.to("cpu") for span in spans])

    def exact(self, context: int, agent: int) -> Span:
        """An agent's exact cache of a context, behind its own role prompt."""
        return self._exact[context][agent].to(self.model.device)

    def hop(self, context: int, agent: int, source: Span | None = None) -> Hop:
        """The hop to an agent from the one before it.

        Args:
            context: Which context.
            agent: Which agent takes over, from 1 on.
            source: What the agent before holds; its exact cache by default.
        """
        return Hop(
            model=self.model,
            agent=self.prompts.roles[agent].name,
            prefix=self.prefixes[agent],
            tokens=self.prompts.contexts[context].tokens,
            source=self.exact(context, agent - 1) if source is None else source,
            dense=lambda: self.exact(context, agent),
        )

    def score(self, context: int, agent: int, cache: Span) -> Scores:
        """Judge the whole cache that an agent would go on from, its role prompt included."""
        found = []
        for probe in self._probes_of(context, agent):
            logits = self.model.logits(probe.tokens, cache, last=probe.counted)
            found.append(compare(probe.exact, logits))
        return Scores(*found)

    def timed(self, work: Callable[[], _T]) -> tuple[_T, float]:
        """What a piece of work returned, and its seconds on this device."""
        self._wait()
        begin = time.perf_counter()
        result = work()
        self._wait()
        return result, time.perf_counter() - begin

    def time_prefill(self, context: int) -> None:
        """Prefill a context once more, for a time that is taken beside those of the methods."""
        tokens, prefix = self.prompts.contexts[context].tokens, self.prefixes[1]
        self.prefill_s[context] = self.timed(lambda: self.model.prefill(tokens, prefix))[1]

    @property
    def prefill_median_s(self) -> float:
        """Median seconds of an exact prefill of a context behind a role prompt."""
        return statistics.median(self.prefill_s.values())

    def _probes_of(self, context: int, agent: int) -> Sequence[_Probe]:
        known = self._probes.get((context, agent))
        if known is not None:
            return known
        whole = self.prefixes[agent].then(self.exact(context, agent))
        text = self.prompts.contexts[context].continuation
        probes = [_Probe(text, len(text), self.model.logits(text, whole, last=len(text)))]
        if self.prompts.question is not None:
            asked = self.prompts.question
            answer = self.model.greedy(asked, whole, ANSWER_TOKENS).to(asked.device)
            tokens = torch.cat((asked, answer[:-1]))
            logits = self.model.logits(tokens, whole, last=ANSWER_TOKENS)
            probes.append(_Probe(tokens, ANSWER_TOKENS, logits))
        self._probes[context, agent] = probes
        return probes

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
