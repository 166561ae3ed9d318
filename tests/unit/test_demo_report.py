"""What the demo reports, and how it looks."""

from __future__ import annotations

from io import StringIO

from langchain_core.messages import AIMessage, ToolMessage
from rich.console import Console

from langgraph_shadow.delivery.ledger import LedgerRow
from langgraph_shadow.demo.report import DemoReport, OrchestratorUse, branch_reports
from langgraph_shadow.demo.screen import Screen, one_line


def row(cached: int | None, **changes: object) -> LedgerRow:
    values: dict[str, object] = {
        "branch": "user_update",
        "mode": "shared",
        "thread": "demo",
        "namespace": "",
        "tool_call_ids": ("call_1",),
        "launch": "follow",
        "exact": True,
        "verdict": "update",
        "carrier": "user_turn",
        "kept": 444,
        "prompt_tokens": 479,
        "predicted": 416,
        "cached": cached,
        "ttft_ms": 12.3456,
        "lag_ms": 1000.0,
        "text": "It found one.",
    }
    return LedgerRow(**(values | changes))


def report(*rows: LedgerRow) -> DemoReport:
    return DemoReport(
        mode="shared",
        model="m",
        block_size=32,
        answer="Yes.",
        orchestrator=OrchestratorUse(),
        branches=branch_reports(rows),
        delivered=2,
        dropped=0,
        late=0,
        ghosts=0,
    )


def test_the_summary_counts_only_what_the_server_confirmed() -> None:
    shown = report(row(416), row(384), row(None)).summary()
    assert shown.startswith("Tokens predicted = tokens cached on 1 of 3 branches;")
    assert "reached you before the answer: 2;" in shown


def test_a_run_without_tools_claims_no_proof() -> None:
    assert "no branch was due" in report().summary()


def test_the_json_has_times_in_tenths() -> None:
    branch = report(row(416)).model_dump(mode="json")["branches"][0]
    assert branch["ttft_ms"] == 12.3
    assert (branch["predicted"], branch["cached"]) == (416, 416)


def test_usage_is_summed_and_a_reply_without_it_still_counts() -> None:
    usage = {
        "input_tokens": 100,
        "output_tokens": 5,
        "total_tokens": 105,
        "input_token_details": {"cache_read": 64},
    }
    bare = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    replies = [
        AIMessage("a", usage_metadata=usage),
        AIMessage("b", usage_metadata=bare),
        AIMessage("c"),
    ]
    assert OrchestratorUse.of(replies) == OrchestratorUse(
        calls=3, prompt_tokens=110, cached_tokens=64
    )


def screened(*, width: int, terminal: bool) -> str:
    out = StringIO()
    screen = Screen(Console(file=out, width=width, force_terminal=terminal, no_color=True))
    call = {"name": "read_doc", "args": {"name": "csv"}, "id": "call_1", "type": "tool_call"}
    screen.question("How?")
    screen.message(AIMessage("", tool_calls=[call]))
    screen.message(ToolMessage("csv [bold]x[/bold]\nmore " + "y" * 300, tool_call_id="call_1"))
    screen.update("It found one.", 512.0)
    screen.ledger([row(416), row(None, verdict="failed", reason="the server is gone")])
    screen.answer("Like this.")
    return out.getvalue()


def test_out_of_a_terminal_each_thing_is_one_plain_line() -> None:
    lines = screened(width=60, terminal=False).splitlines()
    assert "agent  ▸ read_doc(name='csv')" in lines
    assert "shadow ▸ It found one.  0.5 s" in lines
    assert "user_update failed: the server is gone" in lines
    assert "\x1b" not in "".join(lines)
    tools = next(line for line in lines if line.startswith("tools"))
    assert "csv [bold]x[/bold] more" in tools
    assert tools.endswith("…")


def test_a_wide_terminal_shows_the_shadow_on_the_right() -> None:
    lines = screened(width=120, terminal=True).splitlines()
    shadow = next(line for line in lines if "It found one." in line)
    assert shadow.index("shadow") > 55


def test_the_ledger_fits_eighty_columns() -> None:
    shown = screened(width=80, terminal=True)
    for value in ("user_update", "user_turn", "479", "444", "416", "predicted", "update"):
        assert value in shown


def test_a_long_text_is_cut_to_one_line() -> None:
    assert one_line("a\n b   c", 10) == "a b c"
    assert one_line("abcdefghij", 5) == "abcd…"
