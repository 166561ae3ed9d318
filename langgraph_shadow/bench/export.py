"""A recorded run with its branches as a workload for aiperf, to be repeated on other clusters.

The format is aiperf's `dag_jsonl`: one conversation per line, each model call a turn that adds the
messages since the one before it. A branch is a conversation of its own that forks from the turn
of its tool batch in the background, so that the orchestrator goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from langgraph_shadow.bench.trajectories import Trajectory
from langgraph_shadow.branches.branch import Branch
from langgraph_shadow.runner.branch_run import SENTENCE_STOPS

ANSWER_TOKENS = 64
MODE = "deltas_with_responses"
"""Recorded answers are part of the history; what the server generates is thrown away."""


def aiperf_lines(
    trajectories: Iterable[Trajectory],
    branches: Iterable[Branch],
    *,
    answer_tokens: int = ANSWER_TOKENS,
    tool_seconds: float = 0.5,
) -> Iterator[dict[str, Any]]:
    """The conversations of a workload: each orchestrator, followed by its branches.

    A branch forks from exactly the trunk that was recorded, when the orchestrator's answer has
    ended: what the launch mode `gap` does.

    Args:
        trajectories: The recorded conversations.
        branches: What is asked of each tool batch.
        answer_tokens: Tokens that the orchestrator generates in each call.
        tool_seconds: Seconds between an answer and the next call where tools ran.
    """
    asked = tuple(branches)
    for trajectory in trajectories:
        name, forks = trajectory.name, []
        turns: list[dict[str, Any]] = []
        start = 0
        for end in trajectory.calls:
            turn: dict[str, Any] = {
                "messages": list(trajectory.messages[start:end]),
                "max_tokens": answer_tokens,
                "extra": {"temperature": 0, "ignore_eos": True},
            }
            if trajectory.tools:
                turn |= {"tools": list(trajectory.tools)}
                turn["extra"]["tool_choice"] = "none"
            if trajectory.messages[end - 1]["role"] == "tool":
                children = [
                    _branch(f"{name}/{b.name}/{end}", b, tools=bool(trajectory.tools))
                    for b in asked
                ]
                turn["delay"] = tool_seconds * 1000
                if children:
                    turn["forks"] = [
                        {"child": child["session_id"], "background": True} for child in children
                    ]
                forks += children
            turns.append(turn)
            start = end
        if turns:
            yield {"session_id": name, "context_mode": MODE, "turns": turns}
            yield from forks


def write_aiperf(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Write the conversations, one JSON object per line; returns how many."""
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


def _branch(session: str, branch: Branch, *, tools: bool) -> dict[str, Any]:
    """A branch as a forked conversation; it inherits messages and tools, but no request field."""
    fields = branch.request_fields()
    turn: dict[str, Any] = {
        "messages": [{"role": "user", "content": branch.instruction}],
        "max_tokens": fields.pop("max_tokens"),
        "extra": {**fields, **({"tool_choice": "none"} if tools else {})},
    }
    if branch.schema is None:
        turn["extra"]["stop"] = list(SENTENCE_STOPS)
    return {"session_id": session, "context_mode": MODE, "turns": [turn]}
