"""What a router's scheduler is told of an agent: who it is, whose branch this is, what comes next.

vllm-router's program scheduling reads `vllm_xargs.agentic_context`; Dynamo reads
`nvext.agent_hints`. None of it enters the prompt or the block hash.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_shadow.branches.branch import Branch
from langgraph_shadow.delivery.return_clock import ReturnClock
from langgraph_shadow.runner.affinity import Affinity
from langgraph_shadow.runner.server import Server
from langgraph_shadow.trunk.model import TrunkKey

DIAGNOSTICS = "/scheduling/diagnostics"
"""Where vllm-router says whether it schedules programs."""

EARLIER, LATER = 0, -10
"""Priorities as the router counts them: larger is earlier, the reverse of vLLM's."""

_MAX_PROGRAMS = 4096


@dataclass(frozen=True, slots=True)
class _Program:
    """One agent's loop of model and tools.

    Attributes:
        id: Its name.
        parent: The program whose tool it is, or None.
        root: The program at the top of the thread.
    """

    id: str
    parent: str | None
    root: str


class Hints:
    """Builds the request fields that tell a scheduler the agent's shape. Thread-safe."""

    def __init__(self, affinity: Affinity, returns: ReturnClock) -> None:
        """Name sessions as `affinity` does, and promise returns as `returns` measured them."""
        self._affinity = affinity
        self._returns = returns
        self._programs: OrderedDict[tuple[str, str], _Program] = OrderedDict()
        self._lock = threading.Lock()
        self._asked = False
        self._listening = affinity.hints == "nvext"

    @property
    def to_ask(self) -> bool:
        """Whether nobody has asked the router yet; True once."""
        with self._lock:
            asked, self._asked = self._asked, True
        return self._affinity.hints == "agentic_context" and not asked

    async def find_out(self, server: Server) -> None:
        """Ask the router whether it schedules programs."""
        answer = await server.engine.get(DIAGNOSTICS)
        self._listening = answer.get("enabled") is True

    def orchestrator(self, key: TrunkKey, *, resumes: bool) -> dict[str, Any]:
        """Fields of an orchestrator's request.

        Args:
            key: The line of model calls.
            resumes: Whether the answer may ask for tools, after which the agent comes back.
        """
        program = self._program(key)
        if not self._listening or self._affinity.hints == "nvext":
            return {}
        context = {
            **self._context(key, program),
            "agent_id": key.node or "agent",
            "agent_role": "orchestrator",  # without a role the router makes it a subagent
            "expected_resume": resumes,
            "priority": EARLIER,
        }
        seconds = self._returns.tool_seconds()
        if resumes and seconds is not None:
            context["kv_retention_ttl_seconds"] = math.ceil(seconds * 10 + 1) / 10
        return _fields(context)

    def branch(self, key: TrunkKey, branch: Branch, *, seconds: float) -> dict[str, Any]:
        """Fields of a branch's request: a child that its parent does not wait for.

        Args:
            key: The line that the branch belongs to.
            branch: What it asks.
            seconds: How long it may take.
        """
        if not self._listening:
            return {}
        if self._affinity.hints == "nvext":
            return {"nvext": {"agent_hints": {"osl": branch.max_tokens}}}
        parent = self._program(key)
        child = _Program(self._affinity.digest(parent.id, branch.name), parent.id, parent.root)
        return _fields(
            {
                **self._context(key, child),
                "agent_id": f"{key.node or 'agent'}:{branch.name}",
                "agent_role": "shadow",
                "spawn_reason": branch.name,
                "blocks_parent": False,
                "expected_resume": False,
                "expected_output_length": branch.max_tokens,
                "deadline_seconds": seconds,
                "priority": LATER,
            }
        )

    def _context(self, key: TrunkKey, program: _Program) -> dict[str, Any]:
        context: dict[str, Any] = {
            "program_id": program.id,
            "root_program_id": program.root,
            "session_id": self._affinity.session(key.thread),
        }
        if program.parent is not None:
            context["parent_program_id"] = program.parent
        return context

    def _program(self, key: TrunkKey) -> _Program:
        """The program of a line; the agent one namespace up is the parent, which waits for it."""
        own = self._affinity.digest("program", key.thread, key.namespace, key.node)
        with self._lock:
            known = self._programs.get((key.thread, key.namespace))
            if known is None or known.id != own:
                above = self._above(key)
                parent, root = (above.id, above.root) if above is not None else (None, own)
                known = _Program(own, parent, root)
            self._programs[key.thread, key.namespace] = known
            self._programs.move_to_end((key.thread, key.namespace))
            while len(self._programs) > _MAX_PROGRAMS:
                self._programs.popitem(last=False)
        return known

    def _above(self, key: TrunkKey) -> _Program | None:
        namespace = key.namespace
        while namespace:
            namespace = namespace.rpartition("|")[0]
            known = self._programs.get((key.thread, namespace))
            if known is not None:
                return known
        return None


def _fields(context: Mapping[str, Any]) -> dict[str, Any]:
    # As text: vLLM 0.32 refuses an object in `vllm_xargs`, and vllm-router 0.1.17 reads both.
    return {"vllm_xargs": {"agentic_context": json.dumps(context, separators=(",", ":"))}}
