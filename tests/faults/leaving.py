"""A process that ends while a branch is in flight: `python -m tests.faults.leaving MODE PORT`."""

from __future__ import annotations

import asyncio
import sys

from tests.faults.harness import Outcome, async_agent, shadow_on, sync_agent
from tests.faults.server import FaultServer


def main(mode: str, port: int) -> None:
    """Run the agent and leave."""
    server = FaultServer(port=port)  # the one that another process runs
    shadow = shadow_on(server)
    if mode == "sync":
        with sync_agent(server, shadow) as agent:
            outcome = agent.run()
    else:

        async def run() -> Outcome:
            async with async_agent(server, shadow) as agent:
                made: Outcome = await agent.arun()
            return made

        outcome = asyncio.run(run())
    print(outcome.messages[-1][1])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
