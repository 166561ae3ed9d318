"""Offline lab: what reusing or correcting another agent's KV cache costs in exactness.

Needs the extra `correction`. Nothing else in the package imports it.
"""

from __future__ import annotations

from langgraph_shadow.correction.extra import check_extra

check_extra()
