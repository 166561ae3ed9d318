"""Cancelling what the final answer has overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from langgraph_shadow.runner.batch import Batch


async def unless_overtaken(batch: Batch, work: Coroutine[Any, Any, None]) -> bool:
    """Do a batch's work; False when it was cancelled because the answer came first."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(batch.overtaken())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        overtaken = not task.done() and watch.result()
        if overtaken:
            task.cancel()  # closes the stream, which aborts the request (facts/vllm.md)
        await asyncio.wait({task})
    finally:
        task.cancel()
        watch.cancel()
    if overtaken and task.cancelled():
        return False
    task.result()
    return True
