"""Shadow branches for LangGraph agents on vLLM."""

from langgraph_shadow.branches.branch import (
    Branch,
    fact_check,
    memory_note,
    title,
    user_update,
)
from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.errors import (
    AlignmentError,
    PrefixMutationError,
    ServerConfigError,
    ShadowError,
    TraceFormatError,
)
from langgraph_shadow.runner.affinity import Affinity
from langgraph_shadow.shadow import Shadow

__all__ = [
    "Affinity",
    "AlignmentError",
    "Branch",
    "PrefixMutationError",
    "ServerConfigError",
    "Shadow",
    "ShadowError",
    "ShadowEvent",
    "TraceFormatError",
    "fact_check",
    "memory_note",
    "title",
    "user_update",
]
