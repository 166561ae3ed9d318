"""What holds for every answer, however hostile and however it is cut into deltas."""

from __future__ import annotations

import itertools
import re
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_shadow.branches import Branch, SentenceWatch, Verdict, fact_check, read_verdict
from langgraph_shadow.branches.cleaning import links_in, visible
from langgraph_shadow.branches.sentences import first_sentence_end

BRANCH = Branch(name="b", instruction="One sentence, or SKIP.", max_characters=40)

PIECES = st.sampled_from(
    [
        *("Found it", "three files", "Dr", "e.g", "3.11", "SKIP", "skip", "no", "See", "x", "A"),
        *(". ", ".", "! ", "? ", "…", "... ", "。", "।", "\n", "\n\n", " ", ", ", ": ", "-", "\t"),
        *("<b>", "</b>", "<script>", "<", ">", "<|", "|>", "<|im_end|>", "<|im_start|>"),
        *("<tool_call>", "<|channel|>", "<|channel|>analysis", "[INST]", "\nHuman:", "user\n"),
        *("\n### Instruction", "[", "](", ")", "![", "`", "```", "```\n", "**", "*", "_", "# "),
        *("http://", "https://evil.com/a", "evil.com", "www.", "@", "data:", "javascript:", "//"),
        *("&lt;", "&amp;", "&#46;", "{", '{"name": ', "}", '"', "“", "”", "1. ", "ｈ", "．"),
        *("\u200b", "\u202e", "\U000e0041", "\u0301", "✿FUNCTION✿", "to=functions."),
        *("<think>", "[THINK]", "assistant", "analysis", "final"),
    ]
)  # fmt: skip
ANSWERS = st.one_of(
    st.lists(PIECES, max_size=24).map("".join),
    st.lists(st.one_of(PIECES, st.text(max_size=6)), max_size=16).map("".join),
    st.text(max_size=80),
)
FINISH = st.sampled_from(["stop", "length", None])
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
FORBIDDEN = re.compile(r"://|\]\(|`|<\|im|<script|</?b>|\bSKIP\b|\[INST\]")
CLOSERS = ("</think", "[/THINK", "channel|>final", "<channel|>", "assistantfinal")


def read(answer: str, finish_reason: str | None = "stop", branch: Branch = BRANCH) -> Verdict:
    return read_verdict(answer, branch=branch, finish_reason=finish_reason)


@settings(max_examples=200)
@given(ANSWERS, FINISH)
def test_what_reaches_a_person_is_one_plain_line(answer: str, finish_reason: str | None) -> None:
    found = read(answer, finish_reason)
    if found.kind != "update":
        assert not found.text
        return
    text = found.text
    assert 0 < len(text) <= BRANCH.max_characters
    assert not any(unicodedata.category(char) in UNSEEN for char in text)
    assert text == " ".join(text.split())
    assert any(char.isalnum() for char in text)
    assert not links_in(unicodedata.normalize("NFKC", text))
    assert not FORBIDDEN.search(text)


@settings(max_examples=200)
@given(ANSWERS, FINISH)
def test_reading_an_update_again_changes_nothing(answer: str, finish_reason: str | None) -> None:
    found = read(answer, finish_reason)
    if found.kind == "update":
        assert read(found.text) == found


def chunks(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@settings(max_examples=300)
@given(ANSWERS, st.lists(st.integers(0, 200), max_size=12), FINISH, st.booleans())
def test_the_watch_stops_where_the_verdict_is_settled(
    answer: str, cuts: list[int], finish_reason: str | None, every: bool
) -> None:
    watch = SentenceWatch(BRANCH)
    seen = ""
    for delta in list(answer) if every else chunks(answer, cuts):
        seen += delta
        if watch.feed(delta):
            break
    else:
        return
    if any(closer in answer for closer in CLOSERS):
        return
    stopped, whole = read(seen, None), read(answer, finish_reason)
    assert (stopped.kind, stopped.text) == (whole.kind, whole.text)


@given(ANSWERS, ANSWERS)
def test_cleaning_and_sentence_ends_never_change_with_what_follows(first: str, more: str) -> None:
    assert visible(first + more).startswith(visible(first))
    text = visible(first)
    found = first_sentence_end(text, final=False)
    if found.end is not None:
        assert first_sentence_end(visible(first + more), final=True).end == found.end


@given(st.text(max_size=60), FINISH)
def test_an_object_branch_never_raises(answer: str, finish_reason: str | None) -> None:
    branch = fact_check("Tea is hot.")
    assert read(answer, finish_reason, branch).kind in ("skip", "failed")
    whole = read('{"verdict": "unknown"}' + answer, finish_reason, branch)
    if "think" not in answer:
        assert whole.data == {"verdict": "unknown"}


def test_the_watch_stops_early_and_at_the_right_place() -> None:
    def stops_at(answer: str, branch: Branch = BRANCH, **options: bool) -> str | None:
        watch = SentenceWatch(branch, **options)
        for i, char in enumerate(answer):
            if watch.feed(char):
                return answer[: i + 1]
        return None

    assert stops_at("Found it. Next one.") == "Found it. N"
    assert stops_at("Version 3.11 is e.g. new. Next") == "Version 3.11 is e.g. new. N"
    assert stops_at("見つかりました。次") == "見つかりました。次"
    assert stops_at("SKIP because it is empty") == "SKIP "
    assert stops_at("SKIP") is None
    assert stops_at("Found it. <tool_call>") == "Found it. <tool_call>"
    assert stops_at("<think>Hm. Well. So</think>Found it. Next") == (
        "<think>Hm. Well. So</think>Found it. N"
    )
    assert stops_at("Hm. Well.</think>Found it. N", thinking_open=True) == (
        "Hm. Well.</think>Found it. N"
    )
    final = (
        "<|channel|>analysis<|message|>Hm. So<|end|><|start|>assistant<|channel|>final<|message|>"
    )
    assert stops_at(f"{final}Found it. Next") == f"{final}Found it. N"
    assert stops_at('{"verdict": "unknown"} and', fact_check("x")) == '{"verdict": "unknown"}'
    assert stops_at("word " * 1000) == ("word " * 1000)[: 4 * 40 + 64 + 1]


def test_the_watch_keeps_little_of_a_long_thinking_block() -> None:
    watch = SentenceWatch(BRANCH)
    watch.feed("<think>")
    for _ in range(3000):
        assert not watch.feed("Hm. Well, so be it. ")
    assert not watch.feed("</thi")
    assert not watch.feed("nk>Found it.")
    assert watch.feed(" Next")
