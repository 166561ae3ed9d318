"""What the specialists of one shadow have in common: the declared head, the ledger, the server."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from langgraph_shadow.adapters.routing import MARK
from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.specialists.calls import CallForm
from langgraph_shadow.specialists.ledger import HopLedger
from langgraph_shadow.specialists.memory import SentPrompts
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_openai.chat_models.base import BaseChatOpenAI

    from langgraph_shadow.hosts import Host, Hosts
    from langgraph_shadow.runner.once import Once
    from langgraph_shadow.runner.server import Server
    from langgraph_shadow.shadow import Shadow

_LONGEST_ROLE = 16_384
"""Tokens that a role and its carrier may add: a limit for branches would refuse long roles."""

_MAX_KEYS = 4096


@dataclass(frozen=True, slots=True)
class Head:
    """What stands in front of every prompt of a shadow's specialists.

    Attributes:
        system: The system prompt; empty for none, or where the state's messages begin with one.
        tools: Every tool, in the order in which all of them are sent.
    """

    system: str
    tools: tuple[BaseTool, ...]

    def messages(self, state: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The messages of a prompt: the system prompt, then the state's."""
        return [*([SystemMessage(self.system)] if self.system else ()), *state]


@dataclass(frozen=True, slots=True)
class Captured:
    """A specialist's call as the shadow captured it.

    Attributes:
        trunk: The trunk, without the role.
        route: What leads the request to the replica that holds the thread's blocks.
        before: The newest trunk of the orchestrator in the same history; None when none was seen.
    """

    trunk: Trunk
    route: Route
    before: Trunk | None


class Team:
    """The specialists of one shadow."""

    def __init__(self, shadow: Shadow) -> None:
        runner = shadow._runner
        self.ledger = HopLedger()
        self.sent = SentPrompts()
        self.forms: dict[str, CallForm] = {}
        self.llm: BaseChatOpenAI = runner._llm
        self.once: Once = shadow._once
        self.hosts: Hosts = runner._hosts
        self.ladder = Ladder(max_new=_LONGEST_ROLE, splice=shadow._options.splice)
        self.callbacks: list[BaseCallbackHandler] = shadow.callbacks
        self.metadata: dict[str, Any] = {MARK: True}
        self._server = runner._server
        self._sight = shadow._sight
        self._system = ""
        self._tools: dict[str, BaseTool] = {}
        self._declared = False
        self._wire: tuple[Message, ...] | None = None
        self._keys: OrderedDict[TrunkKey, None] = OrderedDict()
        self._lock = threading.Lock()

    def declare(self, system: str, tools: Sequence[BaseTool]) -> Head:
        """Set what stands in front; later specialists may only use these tools."""
        with self._lock:
            if self._declared or self._tools:
                msg = "declare() comes once for a shadow, and before its first specialist()"
                raise ValueError(msg)
            self._declared, self._system = True, system
            for tool in tools:
                if self._tools.setdefault(tool.name, tool) is not tool:
                    msg = f"two tools are named {tool.name!r}; rename one of them"
                    raise ValueError(msg)
        return self.head()

    def join(self, name: str, tools: Sequence[BaseTool]) -> None:
        """A specialist brings its tools: declared here unless `declare` named them all."""
        with self._lock:
            for tool in tools:
                known = self._tools.get(tool.name)
                if known is tool:
                    continue
                if known is not None:
                    msg = (
                        f"specialist {name!r}: another tool is named {tool.name!r} already; pass "
                        "the same object, or rename one of them"
                    )
                elif self._declared:
                    msg = (
                        f"specialist {name!r}: its tool {tool.name!r} is not among the declared "
                        "ones; name it in declare(shadow, tools=[…])"
                    )
                elif self._wire is not None:
                    msg = (
                        f"specialist {name!r}: its tool {tool.name!r} comes after the first "
                        "prompt was sent, and would change every prompt from its beginning; make "
                        "all specialists first"
                    )
                else:
                    self._tools[tool.name] = tool
                    continue
                raise ValueError(msg)

    def head(self) -> Head:
        """The head as declared so far."""
        with self._lock:
            return Head(self._system, tuple(self._tools.values()))

    def tools(self) -> tuple[Message, ...]:
        """The tools in wire form; from the first prompt on they stay as they are."""
        with self._lock:
            if self._wire is None:
                self._wire = tuple(convert_to_openai_tool(tool) for tool in self._tools.values())
            return self._wire

    def server(self, host: Host) -> AbstractAsyncContextManager[Server]:
        """The server as a loop sees it."""
        return self._server(host)

    def captured(self, run_id: UUID) -> Captured | None:
        """What was captured of a specialist's call."""
        found = self._sight.captured(run_id)
        if found is None:
            return None
        trunk, route, beside = found
        with self._lock:
            self._keys[trunk.key] = None
            while len(self._keys) > _MAX_KEYS:
                self._keys.popitem(last=False)
            others = [t for t in beside if t.key not in self._keys]
        return Captured(trunk, route, others[-1] if others else None)


_teams: weakref.WeakKeyDictionary[Shadow, Team] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def team_of(shadow: Shadow) -> Team:
    """The team of a shadow, made when it is first asked for."""
    with _lock:
        team = _teams.get(shadow)
        if team is None:
            team = _teams[shadow] = Team(shadow)
        return team
