"""What to ask beside a trunk, and how to read the answer."""

from langgraph_shadow.branches.branch import (
    BatchView,
    Branch,
    FactCheck,
    fact_check,
    memory_note,
    title,
    user_update,
)
from langgraph_shadow.branches.markers import opens_thinking
from langgraph_shadow.branches.redaction import Redact, apply_redaction
from langgraph_shadow.branches.verdict import SentenceWatch, Verdict, read_verdict

__all__ = [
    "BatchView",
    "Branch",
    "FactCheck",
    "Redact",
    "SentenceWatch",
    "Verdict",
    "apply_redaction",
    "fact_check",
    "memory_note",
    "opens_thinking",
    "read_verdict",
    "title",
    "user_update",
]
