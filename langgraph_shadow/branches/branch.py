"""Branches: what to ask beside a trunk, and the built-in ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, RootModel

if TYPE_CHECKING:
    from collections.abc import Callable

_SLUG = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """What a branch's `when` may look at: the tool batch, without its content.

    Attributes:
        thread: LangGraph's thread id.
        namespace: Checkpoint namespace of the agent that ran the tools.
        node: The node that called the model.
        tool_names: The tools' names, in call order.
        tool_call_ids: The tool call ids, in call order.
        index: Tool batches of this thread, namespace and node before this one.
    """

    thread: str
    namespace: str = ""
    node: str = ""
    tool_names: tuple[str, ...] = ()
    tool_call_ids: tuple[str, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A named instruction that is run against a trunk.

    Attributes:
        name: Lower-case letters, digits, `_` and `-`; names the branch in events and the ledger.
        instruction: What the model is asked; surrounding whitespace is dropped. Every token of it
            is computed anew for each tool batch, so keep it short.
        skip_word: What the model answers when there is nothing to say; the instruction must
            mention it. None for a branch that always answers.
        max_tokens: Longest answer in tokens, thinking included.
        temperature: Sampling temperature; 0 is greedy.
        when: Whether the branch runs for a tool batch; None runs it for every one.
        schema: A pydantic model: the answer is an object of it, not a sentence.
        links: Whether http(s) links may reach the person.
        max_characters: Longest text for the person, in characters.

    Raises:
        ValueError: A value is out of its range; the message says which and what to do.
        TypeError: `schema` is not a pydantic model class.
    """

    name: str
    instruction: str
    skip_word: str | None = "SKIP"
    max_tokens: int = 48
    temperature: float = 0.0
    when: Callable[[BatchView], bool] | None = None
    schema: type[BaseModel] | None = None
    links: bool = False
    max_characters: int = 240

    def __post_init__(self) -> None:
        object.__setattr__(self, "instruction", self.instruction.strip())
        if not _SLUG.fullmatch(self.name):
            msg = (
                f"branch name {self.name!r} is not a slug: use lower-case letters, digits, '_' "
                "and '-', starting with a letter, at most 40 characters, such as 'user_update'"
            )
            raise ValueError(msg)
        if not self.instruction:
            self._refuse("the instruction is empty: say in a sentence what the model should answer")
        if self.schema is not None:
            self._check_schema(self.schema)
        elif self.skip_word is not None:
            if not self.skip_word.strip():
                self._refuse("skip_word is empty: give a word, or None if it always answers")
            if self.skip_word not in self.instruction:
                self._refuse(
                    f"the instruction never mentions the skip word {self.skip_word!r}, so the "
                    "model cannot know it: add it, or pass skip_word=None for a branch that always "
                    "answers"
                )
        if self.max_tokens < 1:
            self._refuse(f"max_tokens is {self.max_tokens}: it must be at least 1")
        if self.max_characters < 16:
            self._refuse(f"max_characters is {self.max_characters}: it must be at least 16")
        if not 0.0 <= self.temperature <= 2.0:
            self._refuse(f"temperature is {self.temperature}: it must be between 0 and 2")

    def _refuse(self, problem: str) -> None:
        msg = f"branch {self.name!r}: {problem}"
        raise ValueError(msg)

    def _check_schema(self, schema: object) -> None:
        if (
            not isinstance(schema, type)
            or not issubclass(schema, BaseModel)
            or issubclass(schema, RootModel)
        ):
            msg = f"branch {self.name!r}: schema must be a pydantic model class with named fields"
            raise TypeError(msg)

    def request_fields(self) -> dict[str, Any]:
        """The request's body fields that this branch decides; stopping is the runner's.

        None of them enters the prompt or the block hash: constrained decoding leaves the prompt's
        tokens unchanged (facts/vllm.md, "Models without a model hub").
        """
        fields: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        if self.schema is not None:
            fields["structured_outputs"] = {"json": self.schema.model_json_schema()}
        return fields


class FactCheck(BaseModel):
    """What `fact_check` answers.

    Attributes:
        verdict: Whether what the agent has read supports the claim.
    """

    verdict: Literal["supported", "unsupported", "unknown"]


def user_update(*, language: str = "English") -> Branch:
    """Tell the person in one sentence what the tools found, when it is worth telling.

    Args:
        language: The language of the sentence, by its English name.
    """
    return Branch(
        name="user_update",
        instruction=(
            f"Tell the user in one short sentence in {_line(language, 'language')} what the last "
            "tool result shows. If it shows nothing useful, reply only: SKIP"
        ),
    )


def fact_check(claim: str) -> Branch:
    """Judge a claim by what the agent has read: supported, unsupported or unknown.

    Args:
        claim: The claim, one or a few sentences.
    """
    return Branch(
        name="fact_check",
        instruction=(
            "Judge this claim by the tool results above only: supported, unsupported or unknown? "
            f"Claim: {_line(claim, 'claim')}"
        ),
        skip_word=None,
        max_tokens=24,
        schema=FactCheck,
    )


def memory_note() -> Branch:
    """One fact worth remembering for later conversations, or SKIP."""
    return Branch(
        name="memory_note",
        instruction=(
            "What about this user or task is worth remembering? Note it in one short sentence, or "
            "reply SKIP if there is nothing."
        ),
    )


def title() -> Branch:
    """A short title for the conversation. It always answers."""
    return Branch(
        name="title",
        instruction="Reply only with a title for this conversation, at most six words.",
        skip_word=None,
        max_tokens=20,
        max_characters=60,
        when=_first_batch,
    )


def _first_batch(batch: BatchView) -> bool:
    """A conversation needs its title once."""
    return batch.index == 0


def _line(text: str, what: str) -> str:
    """The text on one line; an empty one is refused."""
    line = " ".join(text.split())
    if not line:
        msg = f"{what} is empty"
        raise ValueError(msg)
    return line
