"""The session tree of one line of model calls, kept as fingerprints."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from langgraph_shadow.alignment.blocks import common_prefix
from langgraph_shadow.guard.diagnosis import IN_PLACE, Finding, compare, report_of
from langgraph_shadow.guard.fields import FieldRules
from langgraph_shadow.guard.parts import message_parts
from langgraph_shadow.guard.report import REPAIRS, Report

if TYPE_CHECKING:
    from langgraph_shadow.trunk.model import Trunk

_MAX_POINTS = 512
"""Trunks of one line that are remembered as fingerprints (16 bytes each)."""


class Line:
    """What one node of one thread has sent: the newest trunk, and a fingerprint of each before.

    Not thread-safe; the guard holds the lock.

    Attributes:
        newest: The trunk that was sent last.
    """

    def __init__(self) -> None:
        self.newest: Trunk | None = None
        # Each trunk that was sent, and whether it is still the end of its branch of the tree.
        self._sent: OrderedDict[bytes, bool] = OrderedDict()

    def judge(self, trunk: Trunk, rules: FieldRules) -> Report | None:
        """The break that sending `trunk` now would be, or None; O(1) when it is appended."""
        before = self.newest
        if before is None or _grown(before, trunk) or _grown(trunk, before):
            return None
        if trunk.digests[-1] in self._sent or self._grown_from(trunk) is not None:
            return None
        if not before.messages:
            return self._judge_stripped(before, trunk)
        finding = compare(before, trunk, rules)
        if finding is None or self._is_fork(finding, before, trunk):
            return None
        return report_of(finding, before)

    def record(self, trunk: Trunk) -> None:
        """Make `trunk`, which is being sent, the newest one."""
        before, now = self.newest, trunk.digests[-1]
        if before is not None:
            grown = before.digests[-1] if _grown(before, trunk) else self._grown_from(trunk)
            if grown is not None and grown in self._sent:
                self._sent[grown] = False
        self.newest = trunk
        self._sent.setdefault(now, True)
        self._sent.move_to_end(now)
        while len(self._sent) > _MAX_POINTS:
            self._sent.popitem(last=False)

    def strip(self) -> None:
        """Keep the fingerprints alone: a break is still found, but no longer explained."""
        if self.newest is not None:
            self.newest = replace(self.newest, messages=(), tools=())

    def _judge_stripped(self, before: Trunk, trunk: Trunk) -> Report | None:
        same = common_prefix(before.digests, trunk.digests)
        if same and before.digests[same - 1] in self._sent:
            return None  # it may be another branch of the tree
        return Report(
            key=before.key,
            kind="unknown",
            path=f"messages[{same - 1}]" if same else "messages",
            offset=0,
            before="",
            after="",
            repair=REPAIRS["unknown"],
            lost_share=1 - max(0, same - 1) / max(1, len(before.digests) - 1),
        )

    def _grown_from(self, trunk: Trunk) -> bytes | None:
        """The end of an older branch that `trunk` extends; it is all still cached."""
        return next((d for d in reversed(trunk.digests) if self._sent.get(d)), None)

    def _is_fork(self, finding: Finding, before: Trunk, trunk: Trunk) -> bool:
        """Whether the trunk starts another branch of the tree instead of changing this one.

        A fork leaves a point that was sent once, takes nothing of the old branch along, and is no
        rewriting of the old message; or it asks another question in the place of one that ended a
        trunk. A summary is a compaction, not a fork.
        """
        at = finding.index
        if at is None or finding.resumes or finding.summary or finding.kind in IN_PLACE:
            return False
        if before.digests[at] in self._sent:
            return True
        roles = [
            dict(message_parts(t.messages[at], FieldRules())).get("role") for t in (before, trunk)
        ]
        asked = before.digests[at + 1] in self._sent and at == len(trunk.messages) - 1
        return asked and roles == ["user", "user"]


def _grown(before: Trunk, after: Trunk) -> bool:
    """Whether `after` extends `before`; by fingerprints alone, which every trunk keeps."""
    count = len(before.digests)
    return count <= len(after.digests) and after.digests[count - 1] == before.digests[-1]
