"""The errors of this package. Each one carries data and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langgraph_shadow.guard.report import Report


class ShadowError(Exception):
    """Base of every error that this package raises."""


class PrefixMutationError(ShadowError):
    """The guard vetoed a request that would break the cached prefix.

    Raised only under `guard="reject"`, before the request is sent.

    Attributes:
        report: Where the prompt broke, how, what it costs and how to repair it.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report.message())
        self.report = report


class AlignmentError(ShadowError):
    """No carrier keeps the trunk, or a prompt could not be rendered.

    Attributes:
        reason: One sentence, fit for a ledger row.
        tried: The reason each carrier was refused, by carrier name.
    """

    def __init__(self, reason: str, *, tried: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tried = dict(tried or {})


class ServerConfigError(ShadowError):
    """A server is missing, or is not set up so that shadows are cheap.

    Attributes:
        url: The server that was asked.
        remedy: What to change, for example the vLLM flag to add.
    """

    def __init__(self, problem: str, *, url: str, remedy: str) -> None:
        super().__init__(f"{problem} ({url}). {remedy}")
        self.url = url
        self.remedy = remedy


class TraceFormatError(ShadowError):
    """A file of recorded requests could not be read.

    Attributes:
        path: The file.
        line: The line, counted from 1; 0 when the whole file is meant.
        expected: What should have been there.
    """

    def __init__(self, path: str, line: int, *, found: str, expected: str) -> None:
        super().__init__(f"{path}:{line}: {found}; expected {expected}")
        self.path = path
        self.line = line
        self.expected = expected
