"""The SKIP rule, the one-sentence rule, thinking, objects and redaction."""

from __future__ import annotations

from datetime import date
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, field_validator

from langgraph_shadow.branches import (
    Branch,
    Verdict,
    apply_redaction,
    fact_check,
    opens_thinking,
    read_verdict,
    title,
    user_update,
)

UPDATE = user_update()


def read(answer: str, *, branch: Branch = UPDATE, finish_reason: str | None = "stop") -> Verdict:
    return read_verdict(answer, branch=branch, finish_reason=finish_reason)


@pytest.mark.parametrize(
    "answer",
    [
        *("SKIP", "skip", "Skip.", " SKIP\n", '"SKIP"', "**SKIP**", "`SKIP`", "_skip_!", "SKIP."),
        *("(SKIP)", "[SKIP]", "「SKIP」", "SKIP。", "```\nSKIP\n```", "```SKIP```", "ＳＫＩＰ"),
        *("S\u200bKIP", "SKIP<|im_end|>", "SKIP</s>", "<think>\nwhat now\n</think>\n\nSKIP"),
        *("SKIP: nothing new was found.", "Skip - the list is empty.", "Skip. It is empty."),
        *("I would SKIP this.", "There is nothing new, so SKIP", "SKIP SKIP SKIP"),
    ],
)
def test_skip_word_is_a_skip(answer: str) -> None:
    assert read(answer) == Verdict("skip", reason="skip word")


@pytest.mark.parametrize(
    "answer",
    ["Skip the queue by booking online.", "SKIPPER is a sailing library.", "You can skip step 3."],
)
def test_other_words_are_no_skip(answer: str) -> None:
    assert read(answer) == Verdict("update", text=answer)


def test_own_skip_word() -> None:
    branch = Branch(name="b", instruction="Say NONE or a sentence.", skip_word="NONE")
    assert read("None.", branch=branch).kind == "skip"
    assert read("SKIP the line.", branch=branch).kind == "update"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("It is ordered. It is fast.", "It is ordered."),
        ("Is it ordered? Yes.", "Is it ordered?"),
        ("Found it! Now reading.", "Found it!"),
        ("Dr. Smith met Mrs. Jones. More", "Dr. Smith met Mrs. Jones."),
        ("Python 3.11 and v2.0.1 differ. More", "Python 3.11 and v2.0.1 differ."),
        ("They differ, e.g. in asyncio. More", "They differ, e.g. in asyncio."),
        ("See No. 5 and fig. 2 there. More", "See No. 5 and fig. 2 there."),
        ("The answer is no. It fails.", "The answer is no."),
        ("J. R. R. Tolkien wrote it. More", "J. R. R. Tolkien wrote it."),
        ("It needs lists, tuples, etc. to work. More", "It needs lists, tuples, etc. to work."),
        ("It needs lists, etc. Then it works.", "It needs lists, etc."),
        ("It starts at 9 a.m. on Monday. More", "It starts at 9 a.m. on Monday."),
        ("Found it. asyncio.run runs coroutines.", "Found it."),
        ("It took 10 ms. Next one.", "It took 10 ms."),
        ("Well... it works. More", "Well... it works."),
        ("It works… More text", "It works…"),
        ('He said "it works." Then he left.', 'He said "it works."'),
        ("What?! No way.", "What?!"),
        ("1. collections.Counter counts items.\n2. More", "collections.Counter counts items."),
        ("It was found\nin three files. More", "It was found in three files."),
        ("No full stop here\n\nAnother paragraph", "No full stop here"),
        ("No full stop at all", "No full stop at all"),
        ("見つかりました。次へ", "見つかりました。"),
        ("他说“好！”然后走了。", "他说“好！”"),
        ("本当？！はい。", "本当？！"),
        ("यह मिल गया। अगला", "यह मिल गया।"),
        ("هل وجدته؟ نعم.", "هل وجدته؟"),
        ("यह ۳ है। और", "यह ۳ है।"),
        ("Det kostar bl.a. pengar. Mer", "Det kostar bl.a. pengar."),
        ("Es ist z.B. ein Dict. Mehr", "Es ist z.B. ein Dict."),
        ("**It is ordered.** It is fast.", "It is ordered."),
        ('"It is ordered."', "It is ordered."),
        ("<p>It is ordered.</p> More", "It is ordered."),
    ],
)  # fmt: skip
def test_one_sentence(answer: str, sentence: str) -> None:
    assert read(answer) == Verdict("update", text=sentence)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<think>Hm. Well.</think>\n\nFound it.", "Found it."),
        ("Hm. Well.\n</think>\n\nFound it.", "Found it."),
        ("<think>a</think>b. </think>Found it.", "Found it."),
        ("[THINK]Hm. Well.[/THINK]Found it.", "Found it."),
        ("<seed:think>Hm.</seed:think>Found it.", "Found it."),
        ("◁think▷Hm.◁/think▷Found it.", "Found it."),
        ("<|channel>thought\nHm.<channel|>Found it.", "Found it."),
        ("<|START_THINKING|>Hm.<|END_THINKING|>Found it.", "Found it."),
        (
            "<|channel|>analysis<|message|>Hm. Well.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Found it.<|return|>",
            "Found it.",
        ),
        ("analysisThe user wants. Well.assistantfinalFound it.", "Found it."),
        ("Found it. <think>Really?", "Found it."),
    ],
)
def test_thinking_is_cut_off(answer: str, text: str) -> None:
    assert read(answer) == Verdict("update", text=text)


@pytest.mark.parametrize(
    "answer",
    ["<think>Found it. I", "[THINK]Found it. I", "<|channel|>analysis<|message|>Found it. I"],
)
@pytest.mark.parametrize("finish_reason", ["stop", "length", None])
def test_unfinished_thinking_is_a_skip(answer: str, finish_reason: str | None) -> None:
    assert read(answer, finish_reason=finish_reason).kind == "skip"


def test_thinking_that_the_prompt_opened() -> None:
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    assert not opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n")

    def spliced(answer: str) -> Verdict:
        return read_verdict(answer, branch=UPDATE, finish_reason="length", thinking_open=True)

    assert spliced("The user asks. So I") == Verdict("skip", reason="thinking only")
    assert spliced("The user asks.</think>Found it. M") == Verdict("update", text="Found it.")


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        'I will search.\n<tool_call>{"name": "f"}</tool_call>',
        'Let me check: {"name": "f", "arguments": {}}',
        'I will search. {"query": "x"}',
        '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
        "<function=search>{}</function>",
        '<|python_tag|>search.call(query="x")',
        '[search(query="x")]',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function",
        "<|channel|>commentary to=functions.search<|message|>{}",
        '```json\n{"name": "f", "arguments": {}}\n```',
        '<invoke name="f">',
        'functools[{"name": "f"}]',
        '<minimax:tool_call><invoke name="f">',
    ],
)
def test_a_tool_call_is_a_skip(answer: str) -> None:
    assert read(answer).kind == "skip"


def test_a_structured_tool_call_is_a_skip() -> None:
    found = read_verdict("Found it.", branch=UPDATE, finish_reason="stop", tool_calls=True)
    assert found == Verdict("skip", reason="tool call")
    assert read("Found it.", finish_reason="tool_calls").kind == "skip"
    checked = read_verdict("", branch=fact_check("x"), finish_reason="stop", tool_calls=True)
    assert checked.kind == "skip"


@pytest.mark.parametrize("finish_reason", ["length", None, "abort", "content_filter"])
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("It is ordered. And it", "It is ordered."),
        ("It is ordered.", "It is ordered."),
        ("It is ordered and", ""),
        ("It costs $3.", ""),
        ("Use a mapping, e.g.", ""),
        ("It was Dr.", ""),
        ("", ""),
        ("見つかりました。次", "見つかりました。"),
        ("見つかり", ""),
        ("Found it<|im_end|>", "Found it"),
    ],
)
def test_cut_off_answers(answer: str, text: str, finish_reason: str | None) -> None:
    found = read(answer, finish_reason=finish_reason)
    assert (found.kind, found.text) == ("update" if text else "skip", text)


def test_length_cap_cuts_at_a_word() -> None:
    branch = Branch(name="b", instruction="SKIP?", max_characters=30)
    found = read("The dictionary keeps its insertion order.", branch=branch)
    assert found == Verdict("update", text="The dictionary keeps its…")
    assert read("辞" * 40 + "。", branch=branch).text == "辞" * 29 + "…"
    assert read("word " * 30 + ".", branch=branch) == Verdict("skip", reason="no sentence")


def test_title_always_answers() -> None:
    assert read("Counting Words in Python\n", branch=title()).text == "Counting Words in Python"
    assert read('"SKIP lists"', branch=title()).text == "SKIP lists"


class Note(BaseModel):
    model_config = ConfigDict(strict=True)

    about: str
    day: date
    tags: list[str] = []
    kind: Literal["fact", "wish"] = "fact"

    @field_validator("about")
    @classmethod
    def known(cls, value: str) -> str:
        if value == "boom":
            raise RuntimeError("secret text")
        return value


NOTE = Branch(name="note", instruction="Write a note.", schema=Note)


def test_an_object_is_validated() -> None:
    found = read(
        '{"about": "a\\u202eb\\nc", "day": "2026-01-02", "tags": ["\\u200bx"]}', branch=NOTE
    )
    assert found == Verdict(
        "update",
        data={"about": "ab c", "day": "2026-01-02", "tags": ["x"], "kind": "fact"},
    )
    thought = '<think>{}</think>```json\n{"about": "x", "day": "2026-01-02"}\n```'
    assert read(thought, branch=NOTE).kind == "update"


@pytest.mark.parametrize(
    ("answer", "finish_reason", "reason"),
    [
        ('{"about": "x"}', "stop", "the answer does not fit Note: missing at day"),
        ('{"about": "secret", "day": 5}', "stop", "the answer does not fit Note"),
        ('{"about": "boom", "day": "2026-01-02"}', "stop", "validating Note raised RuntimeError"),
        ('{"about": "secr', "length", "cut off before its JSON ended (max_tokens=48)"),
        ("secret", "stop", "the answer is not a JSON object"),
        ('{"a":' + "[" * 20_000, "stop", "the answer is not a JSON object"),
    ],
)
def test_an_object_that_does_not_fit_fails(answer: str, finish_reason: str, reason: str) -> None:
    found = read(answer, branch=NOTE, finish_reason=finish_reason)
    assert found.kind == "failed"
    assert found.reason.startswith(reason)
    assert "secr" not in found.reason
    assert found.data is None


def test_an_object_branch_may_skip() -> None:
    assert read("SKIP.", branch=NOTE).kind == "skip"
    assert read("", branch=NOTE).kind == "skip"


def test_fact_check() -> None:
    assert read('{"verdict": "supported"}', branch=fact_check("x")).data == {"verdict": "supported"}
    assert read('{"verdict": "maybe"}', branch=fact_check("x")).kind == "failed"


def test_redaction_changes_and_withholds() -> None:
    verdict = Verdict("update", text="Call Ada now.")
    assert apply_redaction(verdict, None) == verdict
    assert apply_redaction(verdict, lambda t: t.replace("Ada", "█")).text == "Call █ now."
    assert apply_redaction(verdict, lambda _: None).kind == "skip"
    assert apply_redaction(verdict, lambda _: "  ").kind == "skip"

    noted = Verdict("update", data={"who": "Ada", "all": ["Ada", 1]})
    changed = apply_redaction(noted, lambda t: t.replace("Ada", "█"))
    assert changed.data == {"who": "█", "all": ["█", 1]}
    assert apply_redaction(noted, lambda t: None if t == "Ada" else t).kind == "skip"


def test_a_broken_redaction_hook_withholds_the_text() -> None:
    def broken(text: str) -> str:
        raise RuntimeError(text)

    for hook in (broken, lambda _: 5):
        found = apply_redaction(Verdict("update", text="Call Ada now."), hook)  # type: ignore[arg-type]
        assert found.kind == "failed"
        assert "Ada" not in found.reason + found.text


def test_redaction_sees_updates_only() -> None:
    skip = Verdict("skip", reason="skip word")
    assert apply_redaction(skip, lambda _: "now it speaks") == skip
