"""Lets a model of 135 million parameters run the examples. A capable model needs none of this.

Constrained decoding leaves it only replies that make sense now: search, read what was found, hand
over, answer. The prompt's tokens stay as they are, and so does the cached prefix.
"""

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI

from langgraph_shadow.demo.constrained import (
    ANSWER,
    call_pattern,
    found_names,
    query_pattern,
    this_turn,
)

READS = 2


class SmallModel(ChatOpenAI):
    """A `ChatOpenAI` whose every reply is constrained."""

    def _get_request_payload(self, input_: Any, **kwargs: Any) -> dict[str, Any]:
        payload = super()._get_request_payload(input_, **kwargs)
        messages = self._convert_input(input_).to_messages()
        tools = [tool["function"]["name"] for tool in payload.get("tools") or ()]
        body = {"structured_outputs": fitting(messages, tools)}
        return {**payload, "extra_body": {**(payload.get("extra_body") or {}), **body}}


def fitting(messages: Sequence[BaseMessage], tools: Sequence[str]) -> dict[str, Any]:
    """What the next reply must look like, by what this turn has done and which tools there are."""
    turn = this_turn(messages)
    calls = [call for m in turn if isinstance(m, AIMessage) for call in m.tool_calls]
    called = [call["name"] for call in calls]
    read = [call["args"].get("name") for call in calls]
    unread = [name for name in found_names(turn) if name not in read]
    question = next((m.text for m in reversed(messages) if isinstance(m, HumanMessage)), "")

    if "search_docs" in tools and "search_docs" not in called:
        words = query_pattern(question, "")
        return {"regex": call_pattern("search_docs", "query", words)}
    if "read_doc" in tools and called.count("read_doc") < READS and unread:
        names = "|".join(name.replace(".", r"\.") for name in unread)
        return {"regex": call_pattern("read_doc", "name", names)}
    for name in tools:
        if name not in called and name.startswith("transfer_to_"):
            return {"choice": [written(name, {})]}
        if name not in called and name == "task":
            return {"choice": [written(name, {"description": question, "subagent_type": "reader"})]}
    return {"regex": ANSWER}


def written(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as a Hermes-style template writes it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"
