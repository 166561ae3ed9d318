"""Verdicts: the SKIP rule, the one-sentence rule, and what may reach a person."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from langgraph_shadow.branches import cleaning, markers
from langgraph_shadow.branches.reading import first_object, first_sentence, is_skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel

    from langgraph_shadow.branches.branch import Branch

_PASSES = 4  # removing markup can bring other markup about; text that never settles is hostile
_REPEATED = 40  # letters and digits in a row that count as repeating a text
_REPEATED_WHOLE = 16  # the same, for a sentence that lies in a text as a whole


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a branch answered.

    Attributes:
        kind: `update` (text or data for the person), `skip` (nothing to say) or `failed`.
        text: The sentence for the person; empty unless the kind is `update`, and empty for a
            branch with a schema.
        reason: Why it was skipped or failed; never holds the answer's text.
        data: The validated object of a branch with a schema, as JSON-able values.
    """

    kind: Literal["update", "skip", "failed"]
    text: str = ""
    reason: str = ""
    data: dict[str, Any] | None = None


def _skip(reason: str) -> Verdict:
    return Verdict("skip", reason=reason)


def read_verdict(
    answer: str,
    *,
    branch: Branch,
    finish_reason: str | None,
    tool_calls: bool = False,
    thinking_open: bool = False,
    trunk_texts: Iterable[str] = (),
    question: str = "",
) -> Verdict:
    """Read a model's answer: decide what, if anything, a person gets to see of it.

    Never raises, whatever the answer is. Only the first sentence is read; docs/branches.md lists
    the rules. Reading the text of an update again gives the same update.

    Args:
        answer: The answer's text, or as much of it as was generated.
        branch: The branch that was asked.
        finish_reason: The server's; anything but "stop" counts as cut off, None included (the
            stream was closed).
        tool_calls: Whether the answer carried structured tool calls.
        thinking_open: Whether the prompt ended inside a thinking block (`opens_thinking`).
        trunk_texts: Texts that must not be repeated to a person, the system prompt above all.
        question: The user's own question: its links are allowed.
    """
    if tool_calls or finish_reason == "tool_calls":
        return _skip("tool call")
    if branch.schema is not None:
        return _read_data(
            answer,
            branch,
            branch.schema,
            cut_off=finish_reason != "stop",
            thinking_open=thinking_open,
        )
    secrets = [branch.instruction, *(text for text in trunk_texts if text != question)]
    text, finished = answer, finish_reason == "stop"
    for _ in range(_PASSES):
        found = first_sentence(
            text, branch=branch, final=True, finished=finished, thinking_open=thinking_open
        )
        if not isinstance(found, str):
            return _skip(found.reason if found else "no sentence")
        verdict = _judge(found, branch, secrets, question)
        if verdict.kind != "update" or verdict.text == text:
            return verdict
        text, finished, thinking_open = verdict.text, True, False
    return _skip("nested markup")


class SentenceWatch:
    """Tells, while an answer streams, when enough of it is there to stop the model.

    Once `feed` has returned True, having seen the text `p`, then for every further text `s` and
    every finish reason but "tool_calls" `read_verdict(p + s)` has the kind, text and data of
    `read_verdict(p)`. One exception: `p + s` brings a marker that ends a thinking block; then `p`
    was thinking that nobody announced: pass `thinking_open`.
    """

    def __init__(self, branch: Branch, *, thinking_open: bool = False) -> None:
        self._branch = branch
        self._thinking_open = thinking_open
        self._text = ""
        self._done = False

    def feed(self, delta: str) -> bool:
        """Add generated text; True when the first sentence, object or SKIP is certainly there."""
        if self._done:
            return True
        self._text += delta
        body = markers.after_thinking(
            cleaning.visible(self._text), thinking_open=self._thinking_open
        )
        if body is None:
            # Only the marker that ends the thinking matters now, and it may be half here.
            self._text, self._thinking_open = self._text[-markers.LONGEST_MARKER :], True
        elif self._branch.schema is not None:
            self._done = first_object(body) is not None
        else:
            found = first_sentence(
                self._text,
                branch=self._branch,
                final=False,
                finished=False,
                thinking_open=self._thinking_open,
            )
            self._done = found is not None
        return self._done


def _judge(sentence: str, branch: Branch, secrets: Iterable[str], question: str) -> Verdict:
    """What a person may see of a whole first sentence."""
    sentence = cleaning.unescaped(sentence)
    if cleaning.ACTIVE_HTML.search(sentence):
        return _skip("active HTML")
    if any(_repeats(sentence, secret) for secret in secrets):
        return _skip("repeats its instructions")
    if question and _repeats(sentence, question, whole=True):
        return _skip("repeats the question")
    allowed = cleaning.links_in(question)
    text = cleaning.plain(sentence, allowed=allowed, web=branch.links)
    if cleaning.has_disguised_link(text):
        return _skip("disguised link")
    if not any(c.isalnum() for c in text.replace(cleaning.LINK, "")):
        return _skip("nothing but a link")
    return Verdict("update", text=cleaning.shorten(text, branch.max_characters))


def _repeats(sentence: str, secret: str, *, whole: bool = False) -> bool:
    """Whether a sentence repeats a text: a long stretch of it, or (`whole`) nothing but it."""
    said, kept = _letters(sentence), _letters(secret)
    if len(said) >= _REPEATED_WHOLE and said in kept:
        return True
    stretches = range(0 if whole else len(said) - _REPEATED + 1)
    return any(said[i : i + _REPEATED] in kept for i in stretches)


def _letters(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def _read_data(
    answer: str, branch: Branch, schema: type[BaseModel], *, cut_off: bool, thinking_open: bool
) -> Verdict:
    """The validated object of a branch with a schema."""
    body = markers.after_thinking(cleaning.visible(answer), thinking_open=thinking_open)
    if body is None or not body.strip():
        return _skip("thinking only" if body is None else "empty")
    if is_skip(body, branch.skip_word):
        return _skip("skip word")
    found = first_object(body)
    if found is None:
        return Verdict(
            "failed",
            reason=f"cut off before its JSON ended (max_tokens={branch.max_tokens})"
            if cut_off
            else "the answer is not a JSON object",
        )
    try:
        # As JSON, so that a strict schema takes what JSON can say (dates, enums, tuples).
        value = schema.model_validate_json(json.dumps(map_strings(found, cleaning.one_line)))
        return Verdict("update", data=value.model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or schema.__name__
        return Verdict(
            "failed",
            reason=f"the answer does not fit {schema.__name__}: {first['type']} at {where}",
        )
    except Exception as error:  # a validator of the user's own
        return Verdict(
            "failed", reason=f"validating {schema.__name__} raised {type(error).__name__}"
        )


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON-able value with every string in it, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    return value
