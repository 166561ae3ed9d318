"""Common prefixes and vLLM's block rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix of two sequences (token ids, or a string's characters).

    Compares slices while bisecting, so that equal stretches cost one C-level comparison.
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def predicted_cached(common: int, prompt: int, block_size: int) -> int:
    """Tokens that vLLM's prefix cache will serve.

    `min(⌊C/b⌋·b, ⌊(n−1)/b⌋·b)`: whole blocks only, and the last token is always computed
    (facts/vllm.md, "The prefix cache": 17 of 17 cases).

    Args:
        common: Tokens of common prefix between the prompt and what the cache holds (C).
        prompt: Tokens of the whole prompt (n).
        block_size: The server's block size in tokens (b), from `vllm:cache_config_info`.

    Returns:
        Tokens, a multiple of `block_size`.
    """
    if prompt < 1:
        return 0
    return min(common // block_size, (prompt - 1) // block_size) * block_size
