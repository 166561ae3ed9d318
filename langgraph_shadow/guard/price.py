"""What a break costs, in tokens and blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from langgraph_shadow.alignment.blocks import common_prefix
from langgraph_shadow.alignment.render import Prompt, Renderer
from langgraph_shadow.errors import AlignmentError

if TYPE_CHECKING:
    from langgraph_shadow.guard.report import Report
    from langgraph_shadow.trunk.model import Trunk


async def price(
    report: Report, before: Trunk, after: Trunk, renderer: Renderer, *, block_size: int
) -> Report | None:
    """Price a break by rendering the trunk before it and the one that broke it.

    Args:
        report: The guard's report of `after`.
        before: The trunk that `after` should have extended.
        after: The trunk that broke it.
        renderer: Any renderer. Only one that counts tokens gives a price; one that counts
            characters can still show that nothing was lost.
        block_size: The server's block size (tokens).

    Returns:
        The report with `token`, `block` and `lost_tokens`; the same report when it cannot be
        rendered; None when the difference does not reach the prompt, so that nothing is lost.
    """
    if renderer.unit == "wire":
        return report
    # Without its generation prompt: the assistant's opener is replaced by the answer anyway.
    sent = replace(Prompt.of(before), add_generation_prompt=False)
    try:
        old = (await renderer.render(sent)).items
        new = (await renderer.render(Prompt.of(after))).items
        again = (await renderer.render(_same_length(before, after))).items
    except AlignmentError:
        return report
    if report.kind == "isolation":
        kept = 0
    elif old == again or (kept := common_prefix(old, new)) == len(old):
        return None
    if renderer.unit != "tokens":
        return report
    block = kept // max(1, block_size)
    return replace(
        report, token=kept, block=block, lost_tokens=max(0, len(old) - block * block_size)
    )


def _same_length(before: Trunk, after: Trunk) -> Prompt:
    """As much of the new trunk as the old one had: equal renderings mean an unseen difference.

    The whole new trunk does not tell, since many templates render old turns otherwise once a new
    one is there (facts/templates.md §4).
    """
    start = after.prefix(min(len(before.messages), len(after.messages)))
    return replace(Prompt.of(start), add_generation_prompt=False)
