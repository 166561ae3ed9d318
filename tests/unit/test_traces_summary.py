"""How much of a run was reusable, how much was reused, what breaks cost, and the page of it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from langgraph_shadow.alignment.blocks import predicted_cached
from langgraph_shadow.commands.check import check
from langgraph_shadow.traces.html import page
from langgraph_shadow.traces.recording import read_recording
from langgraph_shadow.traces.summary import Analysis, analyse
from tests.unit.guard_histories import TOOLS, Words, loop

BLOCK = 16

app = typer.Typer()
app.command()(check)


def body(steps: int, head: str = "Be kind.", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": loop(steps, head=head), "tools": TOOLS, **more}


def usage(prompt: int, cached: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}


def write(folder: Path, bodies: list[dict[str, Any]]) -> Path:
    file = folder / "run.jsonl"
    file.write_text("".join(json.dumps(b) + "\n" for b in bodies), encoding="utf-8")
    return file


async def analysed(folder: Path, bodies: list[dict[str, Any]], **how: Any) -> Analysis:
    return await analyse(read_recording(write(folder, bodies)), **how)


async def rendered(steps: int, head: str = "Be kind.", *, prompt: bool = True) -> int:
    """Tokens of one of these prompts, by the same renderer."""
    from langgraph_shadow.alignment.render import Prompt

    messages = tuple(loop(steps, head=head))
    asked = Prompt("m", messages, tuple(TOOLS), add_generation_prompt=prompt)
    return len(await Words().render(asked))


async def test_what_was_reusable_in_tokens(tmp_path: Path) -> None:
    found = await analysed(tmp_path, [body(1), body(2)], renderer=Words(), block_size=BLOCK)

    first, second = found.steps
    whole = await rendered(2)
    # All of the prompt before, and the answer that the server wrote itself: all but one result.
    result = len("<tool>what call_1 found</>\n") + len("<assistant>")
    reusable = predicted_cached(whole - result, whole, BLOCK)
    assert (first.reusable, first.exact, first.size) == (0, True, await rendered(1))
    assert (second.size, second.reusable) == (whole, reusable / whole)
    assert found.summary.prompt_tokens == first.size + second.size
    assert found.summary.reusable_share == round(reusable / (first.size + second.size), 4)
    assert found.summary.lost_tokens == 0


async def test_what_a_break_leaves_in_tokens(tmp_path: Path) -> None:
    bodies = [body(1), body(2, "Be brief.")]
    found = await analysed(tmp_path, bodies, renderer=Words(), block_size=8)

    (broken,) = found.breaks
    kept = len("<system>Be ") // 8 * 8
    assert broken.lost_tokens == await rendered(1, prompt=False) - kept
    assert found.steps[1].reusable == kept / await rendered(2, "Be brief.")
    assert found.summary.lost_tokens == broken.lost_tokens
    assert not broken.row()["estimated"]


async def test_the_models_own_blocks(tmp_path: Path) -> None:
    bodies = [body(1), body(2, model="other")]
    found = await analysed(tmp_path, bodies, renderer=Words(), block_size=8)

    (broken,) = found.breaks
    assert broken.report.kind == "isolation"
    assert found.steps[1].reusable == 0


async def test_without_a_server_recorded_counts_give_the_scale(tmp_path: Path) -> None:
    bodies = [
        body(1, usage=usage(100, 0)),
        body(2, usage=usage(150, 96)),
        body(3, "Be brief.", usage=usage(200, 0)),
    ]
    found = await analysed(tmp_path, bodies)

    summary = found.summary
    assert (summary.requests, summary.breaks, summary.unknown) == (3, 1, 0)
    assert summary.prompt_tokens == 450
    assert summary.reused_share == round(96 / 450, 4)
    (broken,) = found.breaks
    assert broken.lost_tokens == round(150 * broken.report.lost_share) > 100
    assert broken.cost == f"about {broken.lost_tokens} tokens"
    assert broken.cached == "0 of 200"
    row = broken.row()
    assert (row["estimated"], row["prompt_tokens"], row["cached_tokens"]) == (True, 200, 0)
    assert 0.5 < found.steps[1].reusable < 1 > found.steps[2].reusable


async def test_without_any_count_there_are_shares_only(tmp_path: Path) -> None:
    found = await analysed(tmp_path, [body(1), body(2), body(3, "Be brief.")])

    summary = found.summary
    assert (summary.prompt_tokens, summary.reused_share, summary.lost_tokens) == (None, None, None)
    assert 0 < (summary.reusable_share or 0) < 1
    assert found.breaks[0].cost.startswith("about ")
    assert found.breaks[0].cost.endswith("%")


async def test_counts_that_only_some_requests_have_are_not_mixed(tmp_path: Path) -> None:
    found = await analysed(tmp_path, [body(1, usage=usage(10, 0)), body(2), body(3)])

    assert found.summary.prompt_tokens is None
    mean = sum(s.reusable for s in found.steps) / 3
    assert found.summary.reusable_share == round(mean, 4)


async def test_lines_are_kept_apart(tmp_path: Path) -> None:
    bodies = [
        body(1, thread_id="a", node="agent"),
        body(1, "Another.", thread_id="a", node="critic"),
        body(2, thread_id="a", node="agent"),
        body(2, "Another.", thread_id="a", node="critic"),
        body(1, "A third.", thread_id="a", node="agent", namespace="sub:1"),
        body(2, "It is 12:00.", thread_id="b", node="agent"),
        body(3, "It is 12:01.", thread_id="b", node="agent"),
    ]
    row = (await analysed(tmp_path, bodies)).row()

    names = [(n["thread"], n["namespace"], n["node"], n["breaks"]) for n in row["lines"]]
    assert names == [
        ("a", "", "agent", 0),
        ("a", "", "critic", 0),
        ("a", "sub:1", "agent", 0),
        ("b", "", "agent", 1),
    ]
    assert row["breaks"][0]["thread"] == "b"


def test_the_command_says_what_was_reused(tmp_path: Path) -> None:
    bodies = [
        body(1, usage=usage(100, 0)),
        body(2, usage=usage(150, 96)),
        body(3, "Be brief.", usage=usage(200, 0)),
    ]
    outcome = CliRunner().invoke(app, [str(write(tmp_path, bodies))], env={"COLUMNS": "140"})

    assert outcome.exit_code == 1
    assert "of 450 prompt tokens" in outcome.stdout
    assert "reused, as the server counted: 21%" in outcome.stdout
    assert "computed again because of breaks: about " in outcome.stdout
    assert "0 of 200" in outcome.stdout


def test_unknown_prompts_are_neither_fine_nor_broken(tmp_path: Path) -> None:
    hidden = {"run_type": "llm", "id": "1", "trace_id": "t", "inputs": {}, "extra": {}}
    file = write(tmp_path, [{**hidden, "id": str(i)} for i in range(12)])

    plain = CliRunner().invoke(app, [str(file)], env={"COLUMNS": "140"})
    html = CliRunner().invoke(app, [str(file), "--html", str(tmp_path / "page.html")])

    assert plain.exit_code == html.exit_code == 3
    assert "unknown: 12 requests (line 1, 2, 3, 4, 5, 6, 7, 8 …): its input" in plain.stdout
    assert "line 12" in (tmp_path / "page.html").read_text(encoding="utf-8")


class Page(HTMLParser):
    """What a browser would do with a page: its tags, its texts, and what it would load."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(text)

    def count(self, tag: str, name: str) -> int:
        return sum(t == tag and a.get("class") == name for t, a in self.seen)


async def test_the_page_shows_the_run_and_loads_nothing(tmp_path: Path) -> None:
    bodies = [
        body(n, f"It is 12:0{n // 2}.", thread_id="t", time=100 + n, usage=usage(50 + n, 16 * n))
        for n in range(4)
    ]
    found = await analysed(tmp_path, bodies)

    text = page(found, title="run.jsonl")

    read = Page(text)
    assert read.open == []
    assert read.count("div", "call") == 4
    assert sum(t == "s" for t, _ in read.seen) == 4
    (broken,) = found.breaks
    assert ("a", {"href": "#break-1"}) in read.seen
    assert ("li", {"id": "break-1"}) in read.seen
    words = " ".join(read.words)
    for said in ("clock", "12:00.", "12:01.", broken.cost, broken.report.repair, "+3.0 s"):
        assert said in words
    assert not [a for _, a in read.seen if a.get("src") or str(a.get("href", "#"))[0] != "#"]
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in read.seen}
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in text


async def test_what_was_recorded_is_never_markup(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script>" onload="x'
    bodies = [
        body(1, f"{evil} 1", thread_id=evil, node=evil),
        body(2, f"2 {evil}", thread_id=evil, node=evil),
    ]
    found = await analysed(tmp_path, bodies)

    text = page(found, title=evil)

    assert found.breaks
    assert "<script" not in text
    assert not [a for _, a in Page(text).seen if "onload" in a]


@pytest.mark.parametrize("count", [1, 30])
async def test_long_runs_are_folded(tmp_path: Path, count: int) -> None:
    bodies = [body(1, thread_id=f"t-{i}") for i in range(count)]
    read = Page(page(await analysed(tmp_path, bodies), title="x"))

    lines = [a for tag, a in read.seen if tag == "details"]
    assert len(lines) == count
    assert sum("open" in a for a in lines) == min(count, 12)


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    file = write(tmp_path, [body(1)])
    outcome = CliRunner().invoke(app, [str(file), "--html", str(tmp_path / "no" / "page.html")])

    assert outcome.exit_code == 2
    assert "cannot be written" in outcome.stderr
