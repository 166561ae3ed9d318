"""What the guard found: priced in the background, recorded in the ledger, told to the person."""

from __future__ import annotations

import threading

from langgraph_shadow.delivery.events import ShadowEvent
from langgraph_shadow.delivery.ledger import GuardRow, Ledger
from langgraph_shadow.delivery.post import Post
from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.guard.fields import probe_fields
from langgraph_shadow.guard.guard import Guard
from langgraph_shadow.guard.price import price
from langgraph_shadow.guard.repair import Repair
from langgraph_shadow.guard.report import Report
from langgraph_shadow.runner.runner import Runner
from langgraph_shadow.runner.server import Server
from langgraph_shadow.trunk.model import Trunk, TrunkKey


class Findings:
    """Passes the guard's findings on, and teaches it what a template renders."""

    def __init__(self, *, guard: Guard, runner: Runner, ledger: Ledger, post: Post) -> None:
        """Wire the pieces together.

        Args:
            guard: Whose findings they are.
            runner: Asks the server in the background.
            ledger: Where they are recorded.
            post: Where they are told.
        """
        self._guard = guard
        self._runner = runner
        self._ledger = ledger
        self._post = post
        self._probed: set[str] = set()
        self._lock = threading.Lock()

    def rejected(self, report: Report) -> None:
        """A break stopped its request."""
        self._tell(report.key, report, report.message(), StreamTarget.capture())

    def repaired(self, key: TrunkKey, repair: Repair) -> None:
        """A break was mended before it was sent."""
        self._tell(key, repair, f"repaired: {repair.detail}", StreamTarget.capture())

    def found(self, report: Report, before: Trunk | None, after: Trunk) -> None:
        """A break goes on its way: it is priced first, and one that costs nothing is none."""
        target = StreamTarget.capture()

        def tell(priced: Report) -> None:
            self._guard.announce(priced)
            self._tell(priced.key, priced, priced.message(), target)

        if before is None or not before.messages:
            tell(report)
            return

        async def work(server: Server) -> None:
            priced = await price(
                report, before, after, server.renderer, block_size=server.block_size or 1
            )
            if priced is not None:
                tell(priced)

        self._runner.errand(work, lambda: tell(report))

    def learn_fields(self, trunk: Trunk) -> None:
        """Find out in the background, once per model, which fields its template renders."""
        with self._lock:
            if trunk.model in self._probed:
                return
            self._probed.add(trunk.model)

        async def work(server: Server) -> None:
            rules = await probe_fields(server.renderer, trunk.model, fields=trunk.fields)
            self._guard.learn(trunk.model, rules)

        self._runner.errand(work)

    def _tell(
        self, key: TrunkKey, found: Report | Repair, message: str, target: StreamTarget | None
    ) -> None:
        self._ledger.add_guard(
            GuardRow(thread=key.thread, kind=found.kind, path=found.path, message=message)
        )
        event = ShadowEvent(
            type="shadow.guard",
            reason=message,
            thread=key.thread,
            namespace=key.namespace,
            node=key.node,
        )
        self._post.deliver(event, target)
