"""Where the first sentence of an answer ends, also while the answer is still arriving."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Full stops of scripts that put no space after a sentence; these always end one.
_HARD = "。！？｡।॥؟۔։።။។៕"
_CLOSERS = r"""(?:["'”’»›)\]」』）】*_`]|</\w+>)*"""
_END = re.compile(rf"[{_HARD}]+[.!?…]*{_CLOSERS}|[.!?…]+{_CLOSERS}")
_BLANK_LINE = re.compile(r"\n[ \n]*\n")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘«]*\Z")

# Before a name, as written: the full stop is never the sentence's ("10 ms." is no title).
_TITLE = re.compile(
    r"Capt|Col|Drs?|Eds|Fr|Gen|Gov|Hon|Lt|Mme|Mrs?|Ms|Mt|Prof|Rep|Rev|Sen|Sgt|Sra?|St|ca|cf|vs|viz"
    r"|approx|bzw|evtl|ggf|resp|[eE]\.g|[iI]\.e|z\.B|d\.h|t\.ex|bl\.a|p\.ex"
)
# Before a number: "No. 5", but "The answer is no. It …".
_NUMBERED = re.compile(r"art|ch|eq|figs?|nos?|nr|op|pp?|ref|sec|vol", re.IGNORECASE)
# Elsewhere they may end a sentence: the next letter's case tells.
_SHORTENED = re.compile(
    r"al|corp|dept|ed|est|etc|inc|ltd|jr|max|min|osv|usw|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov"
    r"|dec|\d+|(?:[^\W\d_]\.)+[^\W\d_]?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SentenceEnd:
    """The end of the first sentence.

    Attributes:
        end: Characters up to and including its closing marks; None when it has not ended.
        pending: With `end` None: an end may have been reached, the next characters decide.
    """

    end: int | None
    pending: bool = False


def first_sentence_end(text: str, *, final: bool) -> SentenceEnd:
    """Find where the first sentence ends.

    It ends at a sentence's closing mark that whitespace follows, at a full stop of a script that
    needs no space, or before a blank line. Decimals, versions, URLs, abbreviations and initials do
    not end it. An end found with `final=False` is an end however the text goes on.

    Args:
        text: The text, starting at the sentence.
        final: Whether nothing can follow.
    """
    blank = _BLANK_LINE.search(text)
    limit = blank.start() if blank else len(text)
    first_letter = next((i for i, char in enumerate(text) if char.isalpha()), len(text))
    for mark in _END.finditer(text, 0, limit):
        end = mark.end()
        following = text[end:limit].lstrip()
        if not following and not blank and not final:
            return SentenceEnd(None, pending=True)
        if end <= first_letter:
            continue  # "1. " and "# " are not sentences
        if not following:
            return SentenceEnd(end)
        hard = mark.group()[0] in _HARD
        if hard or (text[end].isspace() and not _is_inner(text, mark, following)):
            return SentenceEnd(end)
    return SentenceEnd(limit if blank else None)


def _is_inner(text: str, mark: re.Match[str], following: str) -> bool:
    """Whether a closing mark inside `text` belongs to an abbreviation, a number or a pause."""
    goes_on = following[0].islower()
    if mark.group().startswith("..") or not mark.group().startswith("."):
        return goes_on
    word = _word_before(text, mark.start())
    if _TITLE.fullmatch(word) or (len(word) == 1 and word.isupper() and word != "I"):
        return True
    if _NUMBERED.fullmatch(word):
        return following[0].isdigit()
    if _SHORTENED.fullmatch(word):
        return goes_on or following[0].isdigit()
    return False


def ends_in_number(text: str) -> bool:
    """Whether the text's closing full stop may be a decimal point that lost its digits."""
    return bool(re.search(r"\d\.\Z", text))


def _word_before(text: str, position: int) -> str:
    found = _LAST_WORD.search(text, max(0, position - 24), position)
    return found.group() if found else ""
