"""The examples are small, load without a server, and their small model's replies make sense."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from graphs.small_model import fitting
from langgraph_shadow import Shadow

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "graphs").glob("*.py"))
GRAPHS: dict[str, str] = json.loads((ROOT / "langgraph.json").read_text())["graphs"]
HELPERS = {"model", "small_model", "run"}

QUESTION = "How do I read a CSV file into dictionaries?"
RESEARCH = ["search_docs", "read_doc"]


def test_langgraph_json_names_every_example() -> None:
    assert set(GRAPHS) == {file.stem for file in FILES} - HELPERS


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 80


@pytest.mark.parametrize("name", GRAPHS)
def test_an_example_loads_without_a_server(name: str) -> None:
    path, variable = GRAPHS[name].split(":")
    module = runpy.run_path(str(ROOT / path))
    assert hasattr(module[variable], "astream")
    assert isinstance(module["shadow"], Shadow)


def fits(text: str, messages: list[Any], tools: list[str]) -> bool:
    rule = fitting(messages, tools)
    if "choice" in rule:
        return text in rule["choice"]
    return re.fullmatch(rule["regex"], text) is not None


def call(tool: str, **arguments: Any) -> str:
    body = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def after(*calls: tuple[str, dict[str, Any], str]) -> list[Any]:
    """The question and these calls, each with its result."""
    messages: list[Any] = [HumanMessage(QUESTION)]
    for number, (name, args, result) in enumerate(calls):
        made = {"name": name, "args": args, "id": f"c{number}"}
        messages += [
            AIMessage("", tool_calls=[made]),
            ToolMessage(result, name=name, tool_call_id=f"c{number}"),
        ]
    return messages


SEARCHED = ("search_docs", {"query": "csv dictionaries"}, "csv.DictReader: Reads\ncsv.reader: Rows")
READ = ("read_doc", {"name": "csv.DictReader"}, "Reads rows")
READ_TOO = ("read_doc", {"name": "csv.reader"}, "Rows")
ANSWER = "Use csv.DictReader."


def test_a_small_model_searches_then_reads_what_it_found_then_answers() -> None:
    assert fits(call("search_docs", query="read csv file"), after(), RESEARCH)
    assert not fits(ANSWER, after(), RESEARCH)
    assert fits(call("read_doc", name="csv.reader"), after(SEARCHED, READ), RESEARCH)
    assert not fits(call("read_doc", name="csv.DictReader"), after(SEARCHED, READ), RESEARCH)
    assert not fits(call("read_doc", name="os.path"), after(SEARCHED), RESEARCH)
    assert fits(ANSWER, after(SEARCHED, READ, READ_TOO), RESEARCH)


def test_a_small_model_hands_over_once_to_each() -> None:
    tools = ["transfer_to_reader", "transfer_to_writer"]
    handed = ("transfer_to_reader", {}, "ok")
    assert fits(call("transfer_to_reader"), after(), tools)
    assert fits(call("transfer_to_writer"), after(handed), tools)
    assert fits(ANSWER, after(handed, ("transfer_to_writer", {}, "ok")), tools)
    subagent = call("task", description=QUESTION, subagent_type="reader")
    assert fits(subagent, after(SEARCHED, READ, READ_TOO), [*RESEARCH, "task"])


def test_a_new_question_begins_anew() -> None:
    messages = [*after(SEARCHED, READ, READ_TOO), AIMessage(ANSWER), HumanMessage(QUESTION)]
    assert fits(call("search_docs", query="read csv file"), messages, RESEARCH)


def test_without_tools_a_small_model_answers() -> None:
    assert fits(ANSWER, after(), [])
