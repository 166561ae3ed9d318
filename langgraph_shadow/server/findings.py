"""What the doctor reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "unknown"]
"""`warn`: shadows work, at a price; `fail`: they do not, or are not cheap; `unknown`: it could not
be found out."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        check: What was looked at.
        status: How it stands.
        detail: What was found.
        change: What to change; empty when nothing is wrong.
    """

    check: str
    status: Status
    detail: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """Every finding about one server.

    Attributes:
        url: The server, without `/v1`.
        findings: In the order they were made.
    """

    url: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(f.status != "fail" for f in self.findings)

    def row(self) -> dict[str, Any]:
        """The examination as plain JSON values."""
        return {"url": self.url, "ok": self.ok, "findings": [asdict(f) for f in self.findings]}
