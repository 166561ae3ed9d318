"""Random models of the three supported types, small enough for milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from langgraph_shadow.correction.model import LabModel
from langgraph_shadow.correction.reuse import Hop
from langgraph_shadow.correction.spans import Span

VOCABULARY = 128
TYPES = ("llama", "qwen2", "qwen3", "llama3 frequencies")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def network(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        # Large weights, so that a role in front leaves a mark that is no rounding.
        "initializer_range": 0.3,
        **changes,
    }
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**sizes))
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(head_dim=16, **sizes))
    if kind == "llama3 frequencies":
        sizes["rope_parameters"] = {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    return LlamaForCausalLM(LlamaConfig(**sizes))


@pytest.fixture(scope="session")
def lab_models() -> dict[str, LabModel]:
    return {kind: LabModel.of(network(kind), kind) for kind in TYPES}


@pytest.fixture(params=TYPES)
def model(request: pytest.FixtureRequest, lab_models: dict[str, LabModel]) -> LabModel:
    return lab_models[request.param]


@pytest.fixture
def llama(lab_models: dict[str, LabModel]) -> LabModel:
    return lab_models["llama"]


def words(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (count,), generator=generator)


@dataclass(frozen=True, slots=True)
class Case:
    """A hop and what the taking agent would have computed."""

    hop: Hop
    exact: Span


@pytest.fixture
def case() -> Callable[..., Case]:
    """A context of 20 tokens behind a role of 5, taken over behind a role of 9."""

    def make(model: LabModel, *, tokens: int = 20, seed: int = 3, same_role: bool = False) -> Case:
        before = words(5, seed=1)
        after = before if same_role else words(9, seed=2)
        context = words(tokens, seed=seed)
        source = model.prefill(context, model.prefill(before))
        prefix = model.prefill(after)
        exact = model.prefill(context, prefix)
        return Case(Hop(model, "critic", prefix, context, source, lambda: exact), exact)

    return make


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; unknown words share one."""
    vocabulary = {"<unk>": 0, **{f"w{n}": n for n in range(1, VOCABULARY)}}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")
    made.chat_template = TEMPLATE
    return made


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as a user would have one."""
    target = tmp_path_factory.mktemp("models") / "tiny-llama"
    network("llama").save_pretrained(target)
    word_tokenizer().save_pretrained(target)
    return target


def text(count: int, seed: int) -> str:
    return " ".join(f"w{n}" for n in words(count, seed=seed).clamp_min(1).tolist())
