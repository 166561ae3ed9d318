"""The name under which a proxy gives an agent's blocks back, and when it must change.

With `bidirectional_kv_xfer` the prefill server reads blocks that the decode server kept from the
turn before. The connector compares how many tokens there are, never which ones (facts/kv-sharing.md
§C): a prompt that does not begin with exactly those tokens would be computed on wrong blocks,
without an error. So a name is kept only where it was proved that the last turn's tokens, the
generated ones included, are what the next prompt begins with. Else it changes: a miss, not
corruption.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from langgraph_shadow.alignment.render import Prompt
from langgraph_shadow.runner.affinity import Affinity
from langgraph_shadow.runner.errands import Work
from langgraph_shadow.runner.server import Server
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey

_STAND_IN = "."
"""What follows an answer while the template is tried: some rewrite an answer once more follows."""


@dataclass(eq=False, slots=True)
class _Turn:
    """One model call, from its request to the proof of what it left behind.

    Attributes:
        run_id: The call.
        trunk: What was sent.
        tokens: Ids of the prompt and of what was generated, as the server said them.
        after: The trunk with the answer; None until it came.
        follows: Role of the message that must come next.
        proved: Whether the next prompt is known to begin with `tokens`.
    """

    run_id: UUID
    trunk: Trunk
    tokens: list[int] = field(default_factory=list)
    after: Trunk | None = None
    follows: str = ""
    proved: bool = False

    def doubt(self, trunk: Trunk) -> str | None:
        """Why `trunk` may not reuse this turn's blocks, or None."""
        if self.after is None:
            return "the turn before has no answer"
        count = len(self.after.messages)
        if not trunk.extends(self.after) or count == len(trunk.messages):
            return "the prompt does not extend the turn before"
        if trunk.messages[count]["role"] != self.follows:
            return f"a {self.follows} message was to follow the answer"
        if not self.proved:
            return "its tokens were not proved to begin the prompt"
        return None


@dataclass(slots=True)
class _Line:
    number: int
    turn: _Turn | None = None


class Conversations:
    """Names each agent's conversation. Thread-safe; nothing here waits for a server."""

    def __init__(
        self, affinity: Affinity, *, errand: Callable[[Work], None], max_lines: int
    ) -> None:
        """Name conversations as `affinity` names sessions; prove them by `errand`.

        No name is ever used again, by this process or another one: neither knows what a proxy still
        holds for it.
        """
        self.renamed: Counter[str] = Counter()
        self._affinity = affinity
        self._errand = errand
        self._max_lines = max_lines
        self._own = uuid4().hex
        self._numbers = itertools.count()
        self._lines: OrderedDict[TrunkKey, _Line] = OrderedDict()
        self._turns: OrderedDict[UUID, _Turn] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, run_id: UUID, trunk: Trunk) -> str:
        """A call is about to be sent; returns its conversation's name."""
        with self._lock:
            line = self._lines.get(trunk.key)
            if line is None:
                line = self._lines[trunk.key] = _Line(next(self._numbers))
            self._lines.move_to_end(trunk.key)
            doubt = line.turn.doubt(trunk) if line.turn is not None else None
            if doubt is not None:
                line.number = next(self._numbers)
                self.renamed[doubt] += 1
            line.turn = self._turns[run_id] = _Turn(run_id, trunk)
            _bound(self._lines, self._max_lines)
            _bound(self._turns, self._max_lines)
            return self._affinity.digest("conversation", self._own, str(line.number))

    def said(self, run_id: UUID, answer: Mapping[str, Any]) -> None:
        """A call's answer, or a piece of it, with the ids that `return_token_ids` brings."""
        turn = self._turns.get(run_id)
        if turn is None:
            return
        turn.tokens += answer.get("prompt_token_ids") or ()
        for choice in answer.get("choices") or ():
            turn.tokens += choice.get("token_ids") or ()

    def ended(self, run_id: UUID, answer: Message | None) -> None:
        """A call ended, with its answer or (None) with an error."""
        with self._lock:
            turn = self._turns.pop(run_id, None)
        if turn is None or answer is None:
            return
        calls = answer.get("tool_calls") or ()
        turn.follows = "tool" if calls else "user"
        turn.after = turn.trunk.extend([answer])
        following = [
            {"role": "tool", "tool_call_id": call["id"], "content": _STAND_IN} for call in calls
        ] or [{"role": "user", "content": _STAND_IN}]
        self._errand(lambda server: _prove(turn, following, server))


async def _prove(turn: _Turn, following: Sequence[Message], server: Server) -> None:
    """Render what the next prompt will begin with, and compare it with what was computed."""
    assert turn.after is not None
    rendered = await server.renderer.render(Prompt.of(turn.after.extend(following)))
    held = tuple(turn.tokens[:-1])  # the last token was generated, and not yet computed
    turn.proved = bool(held) and rendered.unit == "tokens" and rendered.items[: len(held)] == held


def _bound(items: OrderedDict[Any, Any], limit: int) -> None:
    while len(items) > limit:
        items.popitem(last=False)
