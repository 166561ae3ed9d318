"""Specialists: role agents that share the trunk, and do write to the state."""

from langgraph_shadow.specialists.errors import SpecialistError, ToolNotAllowedError
from langgraph_shadow.specialists.ledger import HopLedger, HopRow
from langgraph_shadow.specialists.node import declare, ledger_of, specialist
from langgraph_shadow.specialists.team import Head

__all__ = [
    "Head",
    "HopLedger",
    "HopRow",
    "SpecialistError",
    "ToolNotAllowedError",
    "declare",
    "ledger_of",
    "specialist",
]
