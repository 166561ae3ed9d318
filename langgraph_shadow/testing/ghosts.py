"""A branch whose prompt and answer are marked, so that a search cannot miss or mistake them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langgraph_shadow.branches.branch import Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class GhostBranch(Branch):
    """A branch with a mark in its instruction, and another in the answer that it forces.

    Attributes:
        prompt_mark: Occurs in the instruction and nowhere else.
        answer: What the model is made to answer, word for word.
        answer_mark: Occurs in the answer and nowhere else.
    """

    prompt_mark: str
    answer: str
    answer_mark: str

    def request_fields(self) -> dict[str, Any]:
        """The branch's fields, and vLLM's for a forced answer; the prompt stays the same."""
        fields = Branch.request_fields(self)
        return {**fields, "structured_outputs": {"choice": [self.answer]}}


def ghost_branch(*, name: str = "ghost") -> GhostBranch:
    """Make a branch whose shadow text no agent could have written.

    The model has no choice but to answer the marked sentence (vLLM's structured outputs), so any
    model will do, and every branch ends with an update.

    Args:
        name: The branch's name.
    """
    prompt_mark, answer_mark = (f"ghost-{uuid4().hex[:10]}" for _ in range(2))
    return GhostBranch(
        name=name,
        instruction=f"Say in one sentence what you have found ({prompt_mark}).",
        skip_word=None,
        max_tokens=96,
        prompt_mark=prompt_mark,
        answer=f"The mark is {answer_mark}.",
        answer_mark=answer_mark,
    )
