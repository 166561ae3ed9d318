"""Reading an answer up to its first sentence, also while it is still arriving."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_shadow.branches import cleaning, markers
from langgraph_shadow.branches.sentences import ends_in_number, first_sentence_end

if TYPE_CHECKING:
    from langgraph_shadow.branches.branch import Branch

_LONGEST_SENTENCE = 4  # times max_characters; beyond that an answer is not a sentence
_FENCE = re.compile(r"```(?:text|txt|markdown|md)?[ ]?\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is no sentence for a person in this answer.

    Attributes:
        reason: Why, in a few words.
    """

    reason: str


def first_sentence(
    answer: str, *, branch: Branch, final: bool, finished: bool, thinking_open: bool
) -> str | Nothing | None:
    """The first sentence of an answer, `Nothing`, or None while more text may decide.

    With `final=False` a sentence or `Nothing` stays what it is however the answer goes on.

    Args:
        answer: The answer's text so far.
        branch: The branch that was asked.
        final: Whether no more text will come.
        finished: Whether the model itself ended its answer.
        thinking_open: Whether the prompt left a thinking block open.
    """
    body = markers.after_thinking(cleaning.visible(answer), thinking_open=thinking_open)
    if body is None:
        return Nothing("thinking only") if final else None
    longest = _LONGEST_SENTENCE * branch.max_characters
    # What lies further on decides nothing, and a hostile answer must not cost time.
    body = body.lstrip()[: longest + 4 * markers.LONGEST_MARKER]
    endless = len(body) > longest + markers.LONGEST_MARKER
    if body.startswith("```"):
        if "\n" not in body and not final:
            return None
        fence = _FENCE.match(body)
        if fence is None and "\n" in body:
            return Nothing("code")
        body = body[fence.end() :].lstrip() if fence else body.strip("`")
    if markers.NOT_A_SENTENCE.match(body):
        return Nothing("tool call or JSON")

    call = markers.TOOL_CALL.search(body)
    turn = markers.TURN.search(body)
    if not final and any(m is not None and m.end() == len(body) for m in (call, turn)):
        return None  # the marker may grow into an ordinary word
    if turn is not None and (call is None or turn.start() < call.start()):
        if turn.start() == 0 and not final and len(body) < markers.LONGEST_MARKER:
            return None  # it may grow into a marker that opens a thinking block
        body, call, final, finished = body[: turn.start()], None, True, True

    # A sentence that was cut off is whole only where another one could begin.
    scanned = body if finished or not final else f"{body} A"
    found = first_sentence_end(scanned, final=finished)
    end = len(body) if found.end is None else found.end
    sentence, rest = body[:end].strip(), body[end:].lstrip()
    if call is not None and (call.start() < end or rest.startswith(call.group()[0])):
        return Nothing("tool call")
    if _mentions(branch.skip_word, body[:end], open_end=found.end is None and not final):
        return Nothing("skip word")
    if not final:
        if found.end is None:
            return Nothing("no sentence") if endless and not found.pending else None
        if not rest or (rest[0] in "<[`✿" and len(rest) < markers.LONGEST_MARKER):
            return None  # a tool call may follow at once
    if not any(c.isalnum() for c in sentence):
        return Nothing("empty")
    if end > longest:
        return Nothing("no sentence")
    if rest.startswith("{"):
        return Nothing("tool call or JSON")
    whole = finished or (found.end is not None and (bool(rest) or not ends_in_number(sentence)))
    return sentence if whole else Nothing("cut off before its first sentence ended")


def first_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text starts with, or None when there is no whole one."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_skip(text: str, word: str | None) -> bool:
    """Whether a whole text is the skip word: any case, with punctuation or emphasis around it."""
    return word is not None and bool(
        re.fullmatch(rf"[\W_]*{re.escape(word)}[\W_]*", _folded(text), re.IGNORECASE)
    )


def _mentions(word: str | None, sentence: str, *, open_end: bool) -> bool:
    """Whether a sentence is the skip word, starts with it, or has it, as written, in its prose."""
    if word is None:
        return False
    sentence, exact = _folded(sentence), re.escape(word)
    prose = re.search(rf"(?<![A-Za-z0-9_]){exact}(?![A-Za-z0-9_])", sentence)
    if prose and not (open_end and prose.end() == len(sentence)):
        return True
    if re.match(rf"[\W_]*{exact}\s?[.:;,!–—-]+\s", sentence, re.IGNORECASE):
        return True
    return not open_end and is_skip(sentence, word)


def _folded(text: str) -> str:
    """Look-alikes such as full-width letters made plain, for comparing."""
    return unicodedata.normalize("NFKC", text)
