"""The lab reads a model exactly as transformers does, and refuses what it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from langgraph_shadow.correction.model import LabModel, load
from langgraph_shadow.correction.supported import ModelNotSupportedError, check_supported
from langgraph_shadow.errors import ShadowError
from tests.unit.correction.conftest import network, words

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "beta_fast": 32, "beta_slow": 1}


def test_predictions_are_those_of_transformers(model: LabModel) -> None:
    tokens = words(30)
    theirs = model.network(tokens[None]).logits[0]
    ours = model.logits(tokens[12:], model.prefill(tokens[:12]), last=10)
    assert torch.allclose(ours, theirs[-10:], atol=1e-4)


def test_the_cache_is_that_of_transformers(model: LabModel) -> None:
    tokens = words(30)
    cache = model.network(tokens[None], use_cache=True).past_key_values
    span = model.prefill(tokens)
    for number in range(model.layers):
        layer = cache.layers[number]
        assert torch.allclose(layer.keys[0].transpose(0, 1), span.keys[number], atol=1e-4)
        assert torch.allclose(layer.values[0].transpose(0, 1), span.values[number], atol=1e-4)
    assert model.numbers_per_token == span.keys[:, 0].numel() + span.values[:, 0].numel()


def test_an_answer_is_greedy(llama: LabModel) -> None:
    tokens = words(30)
    theirs = llama.network.generate(
        tokens[None], max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, 30:]
    assert llama.greedy(tokens[20:], llama.prefill(tokens[:20]), 6).tolist() == theirs.tolist()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (GPT2Config(), "gpt2"),
        (MistralConfig(), "mistral"),
        (LlamaConfig(rope_parameters=YARN), "yarn"),
        (Qwen2Config(use_sliding_window=True, max_window_layers=0), "sliding_attention"),
        (Qwen3Config(use_sliding_window=True, max_window_layers=0), "sliding_attention"),
        (
            LlamaConfig(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
            "part of each head",
        ),
        (LlamaConfig(quantization_config={"bits": 4}), "quantised"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_models_are_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(ModelNotSupportedError, match=named) as refused:
        check_supported(config, "my-model")
    assert "my-model" in str(refused.value)
    assert isinstance(refused.value, ShadowError)


def test_a_folder_is_loaded(folder: Path) -> None:
    model, tokenizer = load(folder, device="cpu")
    assert model.name == "tiny-llama"
    assert model.device.type == "cpu"
    assert tokenizer.encode("w5 w6") == [5, 6]
    tokens = words(9)
    theirs = network("llama").eval()(tokens[None]).logits[0, -1:]
    assert torch.allclose(model.logits(tokens, None, last=1), theirs, atol=1e-4)


def test_half_precision_is_close(folder: Path) -> None:
    whole, _ = load(folder, device="cpu")
    half, _ = load(folder, device="cpu", dtype="bfloat16")
    assert half.prefill(words(9)).keys.dtype == torch.bfloat16
    near, far = half.prefill(words(9)).values, whole.prefill(words(9)).values
    assert torch.allclose(near.float(), far, atol=0.5)


@pytest.mark.parametrize("content", [None, "{}", '{"model_type": "gpt2"}'])
def test_a_folder_without_a_usable_model_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelNotSupportedError, match=tmp_path.name):
        load(tmp_path, device="cpu")
