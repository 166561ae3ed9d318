"""Along the chain, what an agent got is what the next one starts from."""

from __future__ import annotations

from dataclasses import dataclass, field

from langgraph_shadow.correction.kvcmas import Kvcmas
from langgraph_shadow.correction.lab import Lab
from langgraph_shadow.correction.measure import Method, along
from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.prompts import Context, Prompts, RolePrompt
from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.rotated import Rotated
from langgraph_shadow.correction.spans import Span
from tests.unit.correction.conftest import words


@dataclass
class Spy:
    """Rotated reuse that remembers what it saw and made."""

    name: str = "spy"
    sources: list[Span] = field(default_factory=list)
    made: list[Span] = field(default_factory=list)

    def apply(self, hop: Hop) -> Span:
        self.sources.append(hop.source)
        self.made.append(Rotated().apply(hop))
        return self.made[-1]

    def own_numbers(self, hop: Hop) -> int:
        return 0

    def stored_numbers(self) -> int:
        return 0


def lab(model: LabModel, *, contexts: int = 1) -> Lab:
    roles = tuple(RolePrompt(f"a{n}", words(4 + n, seed=n), words(5)) for n in range(4))
    given = tuple(Context(f"c{n}", words(16, seed=50 + n), words(4), "") for n in range(contexts))
    made = Lab(model, Prompts(words(0), roles, given))
    made.prepare()
    return made


def test_each_hop_starts_from_the_result_of_the_one_before(llama: LabModel) -> None:
    spy = Spy()
    found = list(along(lab(llama), Method(spy, chained=True), 0))
    assert [one.agent for one in found] == [1, 2, 3]
    assert all(a is b for a, b in zip(spy.sources[1:], spy.made[:-1], strict=True))
    assert spy.sources[0].start == 4, "the first agent's own prefill"


def test_a_method_that_is_not_chained_takes_one_hop(llama: LabModel) -> None:
    spy = Spy()
    assert len(list(along(lab(llama), Method(spy), 0))) == 1


def test_a_dense_hop_puts_the_chain_right_again(llama: LabModel) -> None:
    """With an empty pool every hop of the first context is dense, so each agent is exact."""
    made = lab(llama, contexts=3)
    gated = Method(Kvcmas(), chained=True)
    dense = [list(along(made, gated, context)) for context in range(2)]
    assert all(one.dense and one.scores.text.kl == 0 for context in dense for one in context)
    assert all(one.seconds is None for context in dense for one in context)
