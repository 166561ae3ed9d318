"""Role prompts and contexts, from a user's files to token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from pydantic import BaseModel, ValidationError, field_validator

from langgraph_shadow.errors import AlignmentError, ShadowError

MARK = "\u2983context\u2984"
"""Stands for the context while a chat template is rendered; no text holds it."""


class InputFileError(ShadowError):
    """A file of role prompts, or a context, cannot be used.

    Attributes:
        path: The file.
        expected: What should have been there.
    """

    def __init__(self, path: Path, found: str, *, expected: str) -> None:
        super().__init__(f"{path}: {found}; expected {expected}")
        self.path = path
        self.expected = expected


class RolesFile(BaseModel):
    """The file of role prompts: a JSON object from an agent's name to its prompt."""

    roles: dict[str, str]

    @field_validator("roles")
    @classmethod
    def _enough(cls, roles: dict[str, str]) -> dict[str, str]:
        if len(roles) < 2 or not all(prompt.strip() for prompt in roles.values()):
            msg = "two role prompts are needed at least, none of them empty"
            raise ValueError(msg)
        return roles


@dataclass(frozen=True, slots=True)
class Context:
    """One context that all agents read, and how its text really goes on.

    Attributes:
        name: Of the file.
        tokens: What the agents share, shape [n].
        continuation: The tokens after it, shape [m].
        sha256: Of the file's text, the first twelve digits.
    """

    name: str
    tokens: torch.Tensor
    continuation: torch.Tensor
    sha256: str


@dataclass(frozen=True, slots=True)
class RolePrompt:
    """One agent's prompt around a context, in token ids.

    Attributes:
        name: The agent.
        front: What stands before the context when the role comes first, shape [f].
        behind: What follows the context when the role comes last, shape [b].
    """

    name: str
    front: torch.Tensor
    behind: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prompts:
    """Everything that is read.

    Attributes:
        head: What stands before the context when the role comes last, shape [h].
        roles: The agents, in the order in which they work.
        contexts: The contexts.
        question: What follows a context when the agents are asked something, or `None`.
    """

    head: torch.Tensor
    roles: tuple[RolePrompt, ...]
    contexts: tuple[Context, ...]
    question: torch.Tensor | None = None


def read_roles(path: Path) -> dict[str, str]:
    """Role prompts by agent, in the file's order.

    Raises:
        InputFileError: The file is not a JSON object of at least two prompts.
    """
    expected = 'a JSON object {"agent": "role prompt", …} of two agents at least'
    try:
        return RolesFile(roles=json.loads(path.read_text(encoding="utf-8"))).roles
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(path, str(error), expected=expected) from error
    except json.JSONDecodeError as error:
        found = f"not JSON ({error.msg}, line {error.lineno})"
        raise InputFileError(path, found, expected=expected) from error
    except ValidationError as error:
        found = error.errors()[0]["msg"]
        raise InputFileError(path, found, expected=expected) from error


def role_prompts(
    tokenizer: Any, roles: dict[str, str]
) -> tuple[torch.Tensor, tuple[RolePrompt, ...]]:
    """The prompts of all agents under the model's own chat template.

    Returns:
        The head for role last, and the agents.
    """
    head, tail = _around(tokenizer, None)
    prompts = tuple(
        RolePrompt(
            name,
            _ids(tokenizer, _around(tokenizer, role)[0]),
            _ids(tokenizer, f"\n\n{role}{tail}"),
        )
        for name, role in roles.items()
    )
    return _ids(tokenizer, head), prompts


def question_tokens(tokenizer: Any, question: str) -> torch.Tensor:
    """What follows a context when the agents are asked something about it, in token ids."""
    return _ids(tokenizer, f"\n\n{question}{_around(tokenizer, None)[1]}")


def read_contexts(
    tokenizer: Any, paths: Sequence[Path], *, tokens: int, continuation: int
) -> tuple[Context, ...]:
    """The first tokens of each file, and those after them.

    Args:
        tokenizer: The model's tokenizer.
        paths: Text files.
        tokens: Tokens of the context.
        continuation: Tokens after it, over which predictions are compared.

    Raises:
        InputFileError: A file cannot be read, or is too short.
    """
    expected = f"UTF-8 text of {tokens} tokens and {continuation} more"
    contexts = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputFileError(path, str(error), expected=expected) from error
        ids = _ids(tokenizer, text)
        if len(ids) < tokens + continuation:
            raise InputFileError(path, f"{len(ids)} tokens", expected=expected)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        rest = ids[tokens : tokens + continuation]
        contexts.append(Context(path.name, ids[:tokens], rest, digest))
    return tuple(contexts)


def _ids(tokenizer: Any, text: str) -> torch.Tensor:
    # The template wrote the special tokens already; a second one would shift every position.
    return torch.tensor(tokenizer.encode(text, add_special_tokens=False), dtype=torch.long)


def _around(tokenizer: Any, role: str | None) -> tuple[str, str]:
    """What the chat template writes before and after the context, with or without a role first."""
    if not getattr(tokenizer, "chat_template", None):
        front = tokenizer.bos_token or ""
        return (front if role is None else f"{front}{role}\n\n"), "\n\n"
    user = {"role": "user", "content": MARK}
    attempts = [[user]]
    if role is not None:
        together = {"role": "user", "content": f"{role}\n\n{MARK}"}
        attempts = [[{"role": "system", "content": role}, user], [together]]
    for messages in attempts:
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, ValueError):
            continue
        before, mark, after = text.partition(MARK)
        if mark and (role is None or role.strip() in before):
            return before, after
    msg = "the model's chat template shows neither a system nor a user message in full"
    raise AlignmentError(msg)
