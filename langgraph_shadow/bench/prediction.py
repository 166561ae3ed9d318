"""`prediction`: tokens predicted against cached, over carriers, templates and block sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai

from langgraph_shadow.alignment.blocks import predicted_cached
from langgraph_shadow.alignment.ladder import DEFAULT, Ladder
from langgraph_shadow.alignment.survey import BUDGET, INSTRUCTION, Scenario
from langgraph_shadow.alignment.survey import trunk as scenario_trunk
from langgraph_shadow.bench.looping import Looping, looping_agent, search_tool
from langgraph_shadow.bench.report import Report, Row
from langgraph_shadow.bench.target import Session, Target, fresh_salt
from langgraph_shadow.branches.branch import fact_check, user_update
from langgraph_shadow.delivery.ledger import LedgerRow
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.runner.options import Launch
from langgraph_shadow.shadow import Shadow
from langgraph_shadow.trunk.model import Trunk

SERVED = "the server's own"
EXPLAINED = "the orchestrator's next request was computed at the same moment, so more was there"
"""A branch under `lead` races its orchestrator: the prediction is what must hit if it wins."""

GROUP: str | None = "blocks"
COLUMNS: Mapping[str, str] = {
    "template": "template",
    "carriers": "carriers",
    "sent": "sent",
    "refused": "refused",
    "predicted": "predicted",
    "cached": "cached",
    "differing": "differ",
}


@dataclass(frozen=True, slots=True)
class Loop:
    """An agent whose branches are predicted by the library itself, from end to end."""

    launch: Launch
    parallel: int

    @property
    def name(self) -> str:
        """What the table calls it."""
        calls = f"{self.parallel} call{'s' * (self.parallel > 1)} a batch"
        return f"agent, {self.launch}, {calls}"


SCENARIOS = (
    Scenario(turns=1, reasoning=False, parallel=True),
    Scenario(turns=2, reasoning=True, parallel=False),
)
LOOPS = tuple(Loop(launch, parallel) for launch in ("follow", "gap", "lead") for parallel in (1, 3))


async def run(
    target: Target,
    *,
    templates: Mapping[str, str] | None = None,
    scenarios: Sequence[Scenario] = SCENARIOS,
    loops: Sequence[Loop] = LOOPS,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Send a branch by every carrier under every template, and what agents' ledgers say.

    Args:
        target: The server; it must take templates with requests when any are given.
        templates: Sources of chat templates by name, tried beside the server's own.
        scenarios: The trunks.
        loops: Agents to run.
        say: Told what is being tried.
    """
    sources: dict[str, str | None] = {SERVED: None, **(templates or {})}
    rows: list[Row] = []
    async with target.session() as session:
        say(f"block size {target.block_size}: warm-up")
        await _carrier_row(session, SERVED, None, scenarios[0], "user_turn")
        for name, source in sources.items():
            say(f"block size {target.block_size}: template {name}")
            for scenario in scenarios:
                rows += await _carrier_rows(session, name, source, scenario)
        for loop in loops:
            say(f"block size {target.block_size}: {loop.name}")
            rows += await _loop_rows(session, loop)
    return Report(
        bench="prediction",
        settings={"templates": list(sources), "block_sizes": [target.block_size]},
        rows=rows,
        summary=summary(rows),
        notes=notes(rows),
    )


def summary(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows there are, how many were sent, and by how many tokens they differ."""
    sent = [row for row in rows if row["cached"] is not None]
    return {
        "rows": len(rows),
        "sent": len(sent),
        "differing_tokens": sum(abs(row["cached"] - (row["predicted"] or 0)) for row in sent),
        "predicted_tokens": sum(row["predicted"] or 0 for row in sent),
        "refused": len(rows) - len(sent),
        "unexplained": sum(r["cached"] != r["predicted"] and r["why"] != EXPLAINED for r in sent),
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """The sum in a sentence, and each row that differs with what is known about it."""
    found = summary(rows)
    differing = [row for row in rows if row["cached"] not in (None, row["predicted"])]
    return [
        f"{found['differing_tokens']} differing tokens over {found['sent']} branches "
        f"({found['predicted_tokens']} tokens predicted); {found['refused']} combinations were "
        "refused before anything was sent, because the carrier does not keep that trunk.",
        *(
            f"differs: block size {row['block_size']}, {row['template']}, {row['scenario']}, "
            f"{row['carrier']}: {row['predicted']} predicted, {row['cached']} cached; {row['why']}"
            for row in differing
        ),
    ]


def condensed(rows: Sequence[Row]) -> list[Row]:
    """The rows for a terminal: one per block size and template."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["block_size"], row["template"]), []).append(row)
    found = []
    for (size, template), mine in groups.items():
        sent = [row for row in mine if row["cached"] is not None]
        carriers = dict.fromkeys(row["carrier"] for row in sent)
        found.append(
            {
                "blocks": f"blocks of {size} tokens",
                "template": template,
                "carriers": ", ".join(carriers) or mine[0]["why"],
                "sent": len(sent),
                "refused": len(mine) - len(sent),
                "predicted": sum(row["predicted"] or 0 for row in sent),
                "cached": sum(row["cached"] for row in sent),
                "differing": summary(mine)["differing_tokens"],
            }
        )
    return found


async def _carrier_rows(
    session: Session, name: str, source: str | None, scenario: Scenario
) -> list[Row]:
    return [await _carrier_row(session, name, source, scenario, carrier) for carrier in DEFAULT]


async def _carrier_row(
    session: Session, name: str, source: str | None, scenario: Scenario, carrier: str
) -> Row:
    """One trunk, new to the server, and one branch by one carrier."""
    trunk = _trunk(session, scenario, source)
    row = _row(session, name, _described(scenario), carrier)
    try:
        ladder = Ladder(carriers=[carrier], max_new=BUDGET)
        aligned = await session.align(trunk, INSTRUCTION, ladder=ladder)
        await session.orchestrate(trunk)
        answer = await session.branch(trunk, aligned)
    except AlignmentError as refused:
        return {**row, "why": refused.tried.get(carrier, refused.reason)}
    except openai.BadRequestError as refused:
        return {**row, "why": f"the server refuses it: {refused.message}"[:200]}
    size = session.target.block_size
    predicted = predicted_cached(aligned.kept, len(aligned.branch), size)
    why = ""
    if answer.prompt_tokens != len(aligned.branch):
        why = f"the server computed a prompt of {answer.prompt_tokens} tokens"
    elif answer.cached != predicted:
        why = "blocks were gone" if (answer.cached or 0) < predicted else "blocks of another prompt"
    return {
        **row,
        "trunk_tokens": len(aligned.trunk),
        "branch_tokens": len(aligned.branch),
        "kept": aligned.kept,
        "predicted": predicted,
        "cached": answer.cached,
        "why": why,
    }


async def _loop_rows(session: Session, loop: Loop) -> list[Row]:
    """An agent with two branches per batch; one row per branch, as its ledger has it."""
    options = session.settings(
        max_tokens=16,
        batches=2,
        parallel=loop.parallel,
        extra_body={"cache_salt": fresh_salt(), "ignore_eos": True},
    )
    llm = Looping(**options)
    branches = [user_update(), fact_check("Ice melts in summer.")]
    shadow = Shadow(llm, branches=branches, launch=loop.launch, late="deliver")
    thread = fresh_salt()
    graph = looping_agent(llm, search_tool(thread, (0.0,)), shadow)
    config: Any = {"configurable": {"thread_id": thread}}
    await graph.ainvoke({"messages": [("user", f"What is known of ice? ({thread})")]}, config)
    await shadow.drain(timeout=60)
    rows = [
        {
            **_row(session, SERVED, f"{loop.name}: {entry.branch}", entry.carrier),
            "branch_tokens": entry.prompt_tokens,
            "kept": entry.kept,
            "predicted": entry.predicted,
            "cached": entry.cached,
            "why": _loop_why(entry),
        }
        for entry in shadow.ledger.rows
    ]
    await shadow.aclose()
    return rows


def _loop_why(entry: LedgerRow) -> str:
    """Why a ledger's row is not as predicted, as far as that can be known."""
    if entry.as_predicted is None:
        return entry.reason
    if entry.as_predicted:
        return ""
    if entry.found_more:
        return EXPLAINED
    return entry.reason or "not explained"


def _row(session: Session, template: str, scenario: str, carrier: str) -> Row:
    return {
        "block_size": session.target.block_size,
        "template": template,
        "scenario": scenario,
        "carrier": carrier,
        "trunk_tokens": None,
        "branch_tokens": None,
        "kept": None,
        "predicted": None,
        "cached": None,
        "why": "",
    }


def _trunk(session: Session, scenario: Scenario, source: str | None) -> Trunk:
    model = session.target.model
    line = scenario_trunk(scenario, model=model)
    fields = {"cache_salt": fresh_salt(), "chat_template": source}
    return Trunk.build(
        key=line.key, model=model, messages=line.messages, tools=line.tools, fields=fields
    )


def _described(scenario: Scenario) -> str:
    parts = [f"{scenario.turns} turn{'s' * (scenario.turns > 1)}"]
    if scenario.parallel:
        parts.append("parallel calls")
    if scenario.reasoning:
        parts.append("reasoning")
    return ", ".join(parts)
