"""Branches: their validation, their request fields, the built-in ones."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import RootModel

from langgraph_shadow.branches import (
    BatchView,
    Branch,
    FactCheck,
    fact_check,
    memory_note,
    title,
    user_update,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name '' is not a slug"),
        ({"name": "My Branch"}, "not a slug"),
        ({"instruction": ""}, "instruction is empty"),
        ({"instruction": " \n"}, "instruction is empty"),
        ({"instruction": "Say something."}, "never mentions the skip word 'SKIP'"),
        ({"instruction": "Or skip."}, "never mentions"),
        ({"skip_word": ""}, "skip_word is empty"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_characters": 3}, "max_characters is 3"),
        ({"temperature": -1.0}, "temperature is -1.0"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Branch(**{"name": "b", "instruction": "A sentence, or SKIP.", **options})


@pytest.mark.parametrize("schema", [dict, FactCheck(verdict="unknown"), RootModel[list[int]]])
def test_bad_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(TypeError, match="branch 'b': schema must be a pydantic model class"):
        Branch(name="b", instruction="Judge.", schema=schema)


def test_instruction_is_stripped_as_templates_strip_it() -> None:
    assert Branch(name="b", instruction=" Say it, or SKIP.\n").instruction == "Say it, or SKIP."


def test_request_fields() -> None:
    branch = Branch(name="b", instruction="SKIP?", max_tokens=7, temperature=0.5)
    assert branch.request_fields() == {"max_tokens": 7, "temperature": 0.5}


def test_request_fields_of_a_schema() -> None:
    branch = fact_check("Tea is hot.")
    fields = branch.request_fields()
    choices = fields["structured_outputs"]["json"]["properties"]["verdict"]["enum"]
    assert choices == ["supported", "unsupported", "unknown"]


def test_built_ins() -> None:
    assert "Swedish" in user_update(language="Swedish").instruction
    assert "Tea is hot." in fact_check("Tea is\nhot.").instruction
    names = [b.name for b in (user_update(), fact_check("x"), memory_note(), title())]
    assert names == ["user_update", "fact_check", "memory_note", "title"]
    for branch in (user_update(), memory_note()):
        assert branch.skip_word == "SKIP"
        assert len(branch.instruction) < 160
    with pytest.raises(ValueError, match="claim is empty"):
        fact_check(" ")
    with pytest.raises(ValueError, match="language is empty"):
        user_update(language="")


def test_title_runs_once_per_conversation() -> None:
    when = title().when
    assert when is not None
    assert when(BatchView(thread="t"))
    assert not when(BatchView(thread="t", index=1))
