"""Tool calls from a model too small to make them: constrained decoding.

SmolLM2-135M cannot keep to the format of a tool call. The server can: a regular expression in
`structured_outputs` leaves it only well-formed replies, among them the calls that make sense now.
Which of them it takes, the query and the answer's words are the model's own. The prompt's tokens
stay the same (facts/vllm.md, "Models without a model hub"), so the cached prefix does too.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langgraph_shadow.demo.index import search_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.messages import BaseMessage

MIN_BATCHES = 3
"""No answer is allowed before this many tool batches."""

MAX_BATCHES = 4
"""No tool call is allowed after this many tool batches."""

FREE_QUERY = "[a-z]{2,14}( [a-z]{2,14}){0,2}"
"""The query when the question has no words of its own to search for."""

SENTENCE = r"[A-Z]([^.<\n]|\.[a-zA-Z_(])*\."
ANSWER = f"{SENTENCE}( {SENTENCE}){{0,2}}"
"""One to three sentences; a dot inside a dotted name ends none."""


def call_pattern(tool: str, argument: str, value: str) -> str:
    """The regular expression of one tool call, as a Hermes-style template writes it."""
    call = rf'\{{"name": "{tool}", "arguments": \{{"{argument}": "({value})"\}}\}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def found_names(messages: Sequence[BaseMessage]) -> list[str]:
    """The names in all search results so far, in order."""
    names: dict[str, None] = {}
    for message in messages:
        if isinstance(message, ToolMessage) and message.name == "search_docs":
            names |= dict.fromkeys(re.findall(r"^([\w.]+): ", message.text, re.MULTILINE))
    return list(names)


def query_pattern(question: str, searched: str) -> str:
    """Three or four of the question's words, in its order, none of them searched for before.

    Left free, a model this small invents words, and repeats its first search for ever. Empty when
    there is nothing left to search for.
    """
    words = list(dict.fromkeys(search_words(question)))[:8]
    if not searched and len(words) < 2:
        return words[0] if words else FREE_QUERY
    left = [word for word in words if word not in searched.split()]
    sizes = {min(size, len(left)) for size in (3, 4)} - {0, 1}
    return "|".join(" ".join(some) for size in sorted(sizes) for some in combinations(left, size))


def this_turn(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """What came after the person's last question."""
    asked = [i for i, message in enumerate(messages) if isinstance(message, HumanMessage)]
    return messages[asked[-1] + 1 :] if asked else messages


def batches(messages: Sequence[BaseMessage]) -> int:
    """Tool batches since the person's last question."""
    return sum(1 for m in this_turn(messages) if isinstance(m, AIMessage) and m.tool_calls)


def allowed(messages: Sequence[BaseMessage]) -> str:
    """The regular expression that the model's next reply must match."""
    turn = this_turn(messages)
    calls = [call for m in turn if isinstance(m, AIMessage) for call in m.tool_calls]
    read = {call["args"].get("name") for call in calls}
    searched = " ".join(call["args"].get("query", "") for call in calls)
    question = next((m.text for m in reversed(messages) if isinstance(m, HumanMessage)), "")
    query = query_pattern(question, searched)
    unread = [name for name in found_names(turn) if name not in read]
    done = batches(messages)

    options = []
    if done < MAX_BATCHES and unread:
        names = "|".join(name.replace(".", r"\.") for name in unread)
        options.append(call_pattern("read_doc", "name", names))
    # After a search something is read first; the model would else search to the end.
    if (
        done < MAX_BATCHES
        and query
        and (not calls or calls[-1]["name"] == "read_doc" or not unread)
    ):
        options.append(call_pattern("search_docs", "query", query))
    if done >= MIN_BATCHES or not options:
        options.append(ANSWER)
    return "|".join(f"({option})" for option in options)


def constraint(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    """What the request carries beside the prompt."""
    return {"structured_outputs": {"regex": allowed(messages)}}


def read_reply(reply: AIMessage, messages: Sequence[BaseMessage]) -> AIMessage:
    """The same reply with its tool call, if it wrote one, as LangChain's `tool_calls`."""
    match = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", reply.text.strip(), re.DOTALL)
    if match is None:
        return reply
    call = json.loads(match[1])
    count = sum(len(m.tool_calls) for m in messages if isinstance(m, AIMessage))
    made = {"name": call["name"], "args": call["arguments"], "id": f"call_{count + 1}"}
    return reply.model_copy(update={"content": "", "tool_calls": [made | {"type": "tool_call"}]})
