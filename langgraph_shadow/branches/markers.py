"""Markers that models and their chat templates write: thinking, tool calls, turns of others."""

from __future__ import annotations

import re

_OPENER = (
    r"<(?:seed:)?think(?:ing)?>|<(?:thought|reasoning)>|\[THINK\]|<\|START_THINKING\|>|◁think▷"
    r"|<\|channel\|?>(?:analysis|thought)"
)
_THINKING_OPENS = re.compile(rf"\s*(?:{_OPENER}|analysis(?=[A-Z]))")
_THINKING_ENDS_PROMPT = re.compile(rf"(?:{_OPENER})\s*\Z")
_THINKING_CLOSES = re.compile(
    r"</(?:seed:)?think(?:ing)?>|</(?:thought|reasoning)>|\[/THINK\]|<\|END_THINKING\|>|◁/think▷"
    r"|<channel\|>|<\|channel\|>final[^\n]{0,40}?<\|message\|>|(?<=[^\s\w])assistantfinal(?=[A-Z])"
)
LONGEST_MARKER = 64
"""Characters that hold any marker of this file."""

TOOL_CALL = re.compile(
    r"""
    <[|｜/]?(?:[\w:]{0,16}[_:▁])?tool[_▁]?(?:calls?|use|code)
    | <function(?:[=_\s]|_calls?) | <invoke\b | <\|python_tag\|> | <｜DSML | ✿FUNCTION✿
    | \[TOOL_CALLS?\] | \bfunctools\[ | \bto=functions\. | ```(?:json|tool_call|tool_code)\b
    | \{\s*"(?:name|function|tool|tool_name|action|arguments|parameters)"\s*:
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""A tool call written out as text."""

NOT_A_SENTENCE = re.compile(r"\{|\[\s*[{\[\"]|\[\w+\(")
"""How an answer starts that is JSON or a list of calls."""

TURN = re.compile(
    rf"""
    <\|[^|<>\s]{{1,40}}\|?> | <[a-z_]{{1,20}}\|> | <｜[^｜<>]{{1,40}}｜>
    | </?s> | <(?:bos|eos|pad|unk)> | <(?:start|end)_of_turn> | <</?SYS>>
    | \[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\] | </?tool_(?:response|result)s?>
    | {_OPENER}
    | ^[ ]*\#{{1,4}}[ ]*(?:Instruction|Input|Response|System|User|Human|Assistant)\b
    | ^[ *_>"']{{0,8}}(?:Human|User|Assistant|System|Developer|Tool)[*_]{{0,2}}[ ]?:
    | ^[ ]*(?:user|assistant|system|developer|tool)[ ]*\n
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
"""A template's special token or the heading of a turn: what follows is not this answer's."""


def opens_thinking(prompt: str) -> bool:
    """Whether a rendered prompt leaves a thinking block open for the answer to continue."""
    return bool(_THINKING_ENDS_PROMPT.search(prompt[-LONGEST_MARKER:]))


def after_thinking(text: str, *, thinking_open: bool) -> str | None:
    """What follows the last thinking block; None while one is open.

    Args:
        text: The answer's visible characters.
        thinking_open: Whether the prompt left a thinking block open.
    """
    *_, closer = (None, *_THINKING_CLOSES.finditer(text))
    if closer is not None:
        text = text[closer.end() :]
    elif thinking_open:
        return None
    return None if _THINKING_OPENS.match(text) else text
