"""Files of users: read, cut to size, or refused with what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from langgraph_shadow.correction import prompts
from langgraph_shadow.correction.prompts import (
    InputFileError,
    question_tokens,
    read_contexts,
    read_roles,
    role_prompts,
)
from langgraph_shadow.errors import AlignmentError, ShadowError
from tests.unit.correction.conftest import text

EXAMPLES = Path(__file__).parents[3] / "examples" / "roles"
ROLES = {"researcher": "w7 w8", "critic": "w9"}


def decoded(tokenizer: PreTrainedTokenizerFast, ids: object) -> str:
    return tokenizer.decode(ids)


@pytest.fixture
def spelling(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The template's own words are known, so that a decoded prompt can be read."""
    tokenizer.add_tokens(["<system>", "<user>", "<assistant>", "<end>"])
    return tokenizer


def test_the_role_stands_in_front_or_behind(spelling: PreTrainedTokenizerFast) -> None:
    head, roles = role_prompts(spelling, ROLES)
    assert decoded(spelling, head).split() == ["<user>"]
    assert [role.name for role in roles] == ["researcher", "critic"]
    front, behind = (decoded(spelling, ids).split() for ids in (roles[0].front, roles[0].behind))
    assert front == ["<system>", "w7", "w8", "<end>", "<user>"]
    assert behind == ["w7", "w8", "<end>", "<assistant>"]
    asked = decoded(spelling, question_tokens(spelling, "w3")).split()
    assert asked == ["w3", "<end>", "<assistant>"]


def test_a_template_without_system_prompts_gets_the_role_in_the_users_turn(
    spelling: PreTrainedTokenizerFast,
) -> None:
    spelling.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        + str(spelling.chat_template)
    )
    front = role_prompts(spelling, ROLES)[1][0].front
    assert decoded(spelling, front).split() == ["<user>", "w7", "w8"]


def test_a_template_that_drops_the_system_prompt_is_noticed(
    spelling: PreTrainedTokenizerFast,
) -> None:
    spelling.chat_template = (
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    )
    front = role_prompts(spelling, ROLES)[1][0].front
    assert decoded(spelling, front).split() == ["w7", "w8"]


def test_a_template_that_shows_nothing_is_refused(spelling: PreTrainedTokenizerFast) -> None:
    spelling.chat_template = "nothing"
    with pytest.raises(AlignmentError, match="chat template"):
        role_prompts(spelling, ROLES)


def test_a_base_model_has_no_template(spelling: PreTrainedTokenizerFast) -> None:
    spelling.chat_template = None
    head, roles = role_prompts(spelling, ROLES)
    assert len(head) == 0
    assert decoded(spelling, roles[1].front).split() == ["w9"]


def test_a_context_and_what_comes_after_it(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text(30, seed=1))
    (context,) = read_contexts(tokenizer, [path], tokens=20, continuation=6)
    whole = tokenizer.encode(path.read_text())
    assert context.tokens.tolist() == whole[:20]
    assert context.continuation.tolist() == whole[20:26]
    assert context.name == "a.txt"
    assert len(context.sha256) == 12


def test_a_short_context_is_refused_with_its_length(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    path = tmp_path / "short.txt"
    path.write_text(text(25, seed=1))
    with pytest.raises(InputFileError, match=r"short\.txt: 25 tokens; expected .* 20 .* 6") as no:
        read_contexts(tokenizer, [path], tokens=20, continuation=6)
    assert isinstance(no.value, ShadowError)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xfa"])
def test_an_unreadable_context_is_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputFileError, match=r"a\.txt"):
        read_contexts(tokenizer, [path], tokens=20, continuation=6)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "line 1"),
        ("[]", "dictionary"),
        ('{"a": "x"}', "two role prompts"),
        ('{"a": "x", "b": " "}', "none of them empty"),
        ('{"a": "x", "b": 3}', "string"),
    ],
)
def test_a_bad_roles_file_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "roles.json"
    path.write_text(content)
    with pytest.raises(InputFileError, match=said) as no:
        read_roles(path)
    assert no.value.path == path


def test_a_missing_roles_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="none"):
        read_roles(tmp_path / "none.json")


def test_the_examples_are_in_order() -> None:
    roles = read_roles(EXAMPLES / "roles.json")
    assert list(roles) == list(json.loads((EXAMPLES / "roles.json").read_text()))
    assert len(roles) == 5
    assert len(list((EXAMPLES / "contexts").glob("*.txt"))) == 8
    assert prompts.MARK not in "".join(roles.values())
