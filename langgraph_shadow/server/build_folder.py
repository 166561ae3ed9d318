"""Writes one model folder; run as a process of its own, because it imports torch.

Usage: `python build_folder.py smollm2|tiny OUT_DIR TEMPLATE_FILE GGUF_FILE`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def build(kind: str, out: Path, template: Path, gguf: Path) -> None:
    """Writes weights, config, tokenizer and chat template of a model to `out`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    tokenizer.save_pretrained(out)
    model = _smollm2(gguf) if kind == "smollm2" else _tiny_qwen3(tokenizer)
    model.save_pretrained(out)


def _smollm2(gguf: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    # Without `dequantize` transformers keeps the packed blocks, which no server can load
    # (facts/vllm.md, "Models without a model hub").
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    model.hf_quantizer = None
    return model


def _tiny_qwen3(tokenizer: Any) -> Any:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
    }
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        dtype="bfloat16",
        **special,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(**special)
    return model


if __name__ == "__main__":
    build(sys.argv[1], *(Path(argument) for argument in sys.argv[2:5]))
