"""Which models the lab can treat exactly, and the refusal of all others."""

from __future__ import annotations

from typing import Any

from langgraph_shadow.errors import ShadowError

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3")
"""Frequencies that do not depend on the length, and keys that are rotated but not scaled."""


class ModelNotSupportedError(ShadowError):
    """The lab cannot treat a model's cache exactly.

    Attributes:
        model: The model.
        reason: What stands in the way.
    """

    def __init__(self, model: str, reason: str) -> None:
        types = ", ".join(MODEL_TYPES)
        super().__init__(
            f"{model}: {reason}; the correction lab takes {types} models with full attention"
        )
        self.model = model
        self.reason = reason


def check_supported(config: Any, name: str) -> None:
    """Refuse a model by name when its cache is not plain grouped-query attention with RoPE.

    Args:
        config: A transformers config.
        name: What the model is called in the refusal.

    Raises:
        ModelNotSupportedError: With the reason.
    """
    reason = _obstacle(config)
    if reason is not None:
        raise ModelNotSupportedError(name, reason)


def _obstacle(config: Any) -> str | None:
    model_type = getattr(config, "model_type", None)
    if model_type not in MODEL_TYPES:
        return f"its model type is {model_type!r}"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds or getattr(config, "use_sliding_window", False):
        return f"it has layers of {', '.join(sorted(kinds)) or 'sliding_attention'}"
    rope = getattr(config, "rope_parameters", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        return f"its RoPE is scaled by {rope_type!r}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "its RoPE turns only a part of each head"
    return None
