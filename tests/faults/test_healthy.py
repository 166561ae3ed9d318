"""Without a fault the fake server is a vLLM: updates, and hits as predicted."""

from __future__ import annotations

import pytest

from tests.faults.harness import BATCHES, MODES, Mode, accounted, run, shadow_on
from tests.faults.server import SENTENCE, FaultServer


@pytest.mark.parametrize("mode", MODES)
def test_no_fault(mode: Mode) -> None:
    with FaultServer() as server:
        plain = run(mode, server)
        assert plain.error is None
        shadow = shadow_on(server)
        assert run(mode, server, shadow) == plain
    accounted(shadow, fired=BATCHES)
    for row in shadow.ledger:
        assert (row.verdict, row.text, row.reason) == ("update", SENTENCE, "")
        assert row.predicted == row.cached
        assert row.cached
