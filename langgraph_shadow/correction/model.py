"""A Hugging Face model folder whose KV cache can be read, replaced and recomputed in part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as functional

from langgraph_shadow.correction.spans import Rope, Span
from langgraph_shadow.correction.supported import ModelNotSupportedError, check_supported

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class LabModel:
    """A causal language model with grouped-query attention and a rotary position embedding.

    Attributes:
        network: The transformers model.
        name: What it is called in reports.
        rope: Its position embedding.
        layers: L.
        heads: Key and value heads, H.
        head_dim: D.
    """

    network: Any
    name: str
    rope: Rope
    layers: int
    heads: int
    head_dim: int

    @staticmethod
    def of(network: Any, name: str = "model") -> LabModel:
        """The lab's view of a transformers model that is already in memory.

        Raises:
            ModelNotSupportedError: The lab cannot treat its cache exactly.
        """
        config = network.config
        check_supported(config, name)
        head_dim = getattr(config, "head_dim", None)
        return LabModel(
            network=network.eval().requires_grad_(requires_grad=False),
            name=name,
            rope=Rope(network.model.rotary_emb.inv_freq.detach().clone()),
            layers=config.num_hidden_layers,
            heads=config.num_key_value_heads,
            head_dim=head_dim or config.hidden_size // config.num_attention_heads,
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.model.embed_tokens.weight.device

    @property
    def numbers_per_token(self) -> int:
        """Numbers that the cache holds for one token, keys and values of all layers."""
        return 2 * self.layers * self.heads * self.head_dim

    def prefill(self, tokens: torch.Tensor, past: Span | None = None) -> Span:
        """The cache of `tokens` [n] behind `past`, which starts at position 0."""
        return self._read(tokens, past)[0]

    def logits(self, tokens: torch.Tensor, past: Span | None, *, last: int) -> torch.Tensor:
        """What the model predicts after each of the last tokens.

        Args:
            tokens: Token ids to read, shape [n].
            past: The cache before them, from position 0 on.
            last: For how many of the tokens, counted from the end.

        Returns:
            Shape [last, vocabulary].
        """
        hidden = self._read(tokens, past)[1][:, -last:]
        return self.network.lm_head(self.network.model.norm(hidden))[0]

    def greedy(self, tokens: torch.Tensor, past: Span, count: int) -> torch.Tensor:
        """What the model writes after `tokens` by greedy decoding, shape [count]."""
        written: list[torch.Tensor] = []
        for _ in range(count):
            span, hidden = self._read(tokens, past)
            past = past.then(span)
            scores = self.network.lm_head(self.network.model.norm(hidden[:, -1:]))
            tokens = scores[0].argmax(dim=-1)
            written.append(tokens)
        return torch.cat(written)

    def recompute(
        self, tokens: torch.Tensor, prefix: Span, span: Span, chosen: torch.Tensor
    ) -> Span:
        """The span with some of its tokens computed anew behind `prefix`.

        Each chosen token attends to the prefix and to everything before it in the span, be that
        reused or recomputed, in every layer.

        Args:
            tokens: The span's token ids, shape [n].
            prefix: What stands before the span, from position 0.
            span: What is kept for the tokens that were not chosen.
            chosen: Places in the span, ascending, shape [k].
        """
        chosen = chosen.to(self.device)
        with torch.inference_mode():
            whole = prefix.then(span)
            keys, values = whole.keys.clone(), whole.values.clone()
            hidden = self.network.model.embed_tokens(tokens.to(self.device)[chosen])[None]
            hidden = self.through(0, self.layers, hidden, chosen + len(prefix), keys, values)
        return Span(keys, values).part(len(prefix), len(whole))

    def through(
        self,
        first: int,
        last: int,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Take hidden states through the layers from `first` up to `last`.

        Args:
            first: The first layer.
            last: The layer before which to stop.
            hidden: Shape [1, n, hidden].
            positions: Of these tokens, ascending, shape [n].
            keys: The whole cache, [L, N, H, D]; the tokens' own places are overwritten.
            values: The same for values.
        """
        places = torch.arange(keys.shape[1], device=self.device)
        seen = (places[None, :] <= positions[:, None])[None, None]
        for number in range(first, last):
            layer = self.network.model.layers[number]
            normed = layer.input_layernorm(hidden)
            key, value = self._key_value(layer.self_attn, normed, positions)
            keys[number, positions], values[number, positions] = key, value
            attended = self._attend(
                layer.self_attn, normed, positions, keys[number], values[number], seen
            )
            hidden = hidden + attended
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden

    def key_value(
        self, number: int, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [n, H, D] that a layer makes of hidden states [1, n, hidden]."""
        layer = self.network.model.layers[number]
        return self._key_value(layer.self_attn, layer.input_layernorm(hidden), positions)

    def _read(self, tokens: torch.Tensor, past: Span | None) -> tuple[Span, torch.Tensor]:
        tokens = tokens.to(self.device)
        with torch.inference_mode():
            hidden = self.network.model.embed_tokens(tokens)[None]
            begin = 0 if past is None else len(past)
            shape = (self.layers, len(tokens), self.heads, self.head_dim)
            own = Span(hidden.new_zeros(shape), hidden.new_zeros(shape), begin)
            whole = own if past is None else past.then(own)
            keys, values = whole.keys, whole.values
            positions = torch.arange(begin, begin + len(tokens), device=self.device)
            hidden = self.through(0, self.layers, hidden, positions, keys, values)
        return Span(keys, values).part(begin, begin + len(tokens)), hidden

    def _key_value(
        self, attention: Any, normed: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (-1, self.heads, self.head_dim)
        key = attention.k_proj(normed)[0].view(shape)
        if hasattr(attention, "k_norm"):
            key = attention.k_norm(key)
        return self.rope.rotate(key, positions), attention.v_proj(normed)[0].view(shape)

    def _attend(
        self,
        attention: Any,
        normed: torch.Tensor,
        positions: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        query = attention.q_proj(normed)[0].view(len(positions), -1, self.head_dim)
        if hasattr(attention, "q_norm"):
            query = attention.q_norm(query)
        query = self.rope.rotate(query, positions)
        groups = query.shape[1] // self.heads
        key, value = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
        query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=attention.scaling
        )
        return attention.o_proj(mixed[0].transpose(0, 1).reshape(1, len(positions), -1))


def hide_progress() -> None:
    """Keep transformers from drawing bars while weights are loaded, in this whole process."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def load(folder: Path, *, device: str = "auto", dtype: Dtype = "float32") -> tuple[LabModel, Any]:
    """A model folder and its tokenizer.

    Args:
        folder: A Hugging Face model folder; no hub is asked.
        device: `cpu`, `cuda`, `cuda:N`, or `auto` for a GPU where there is one.
        dtype: Precision of weights and caches. In `bfloat16` rounding alone costs KL.

    Raises:
        ModelNotSupportedError: The folder cannot be read, or the lab cannot treat its model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    name = folder.name
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelNotSupportedError(name, f"the folder cannot be read ({error})") from error
    check_supported(config, name)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        network = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).to(device)
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        raise ModelNotSupportedError(name, f"it cannot be loaded ({error})") from error
    return LabModel.of(network, name), tokenizer
