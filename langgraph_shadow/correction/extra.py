"""The extra `correction`, and what is said when it is absent."""

from __future__ import annotations

from importlib.util import find_spec

from langgraph_shadow.errors import ShadowError

EXTRA = "correction"
PACKAGES = ("torch", "transformers", "jinja2")


class ExtraMissingError(ShadowError, ImportError):
    """A package of the extra is not installed.

    Attributes:
        extra: The extra to install.
        missing: The packages that were not found.
    """

    def __init__(self, extra: str, missing: list[str]) -> None:
        needed = " and ".join(missing)
        super().__init__(
            f"the correction lab needs {needed}: pip install 'langgraph-shadow[{extra}]'"
        )
        self.extra = extra
        self.missing = missing


def check_extra() -> None:
    """Find out whether the lab can run here, without importing torch.

    Raises:
        ExtraMissingError: A package of the extra is missing.
    """
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise ExtraMissingError(EXTRA, missing)
