"""The whole run: from files to a report with rows, a summary and a recommendation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langgraph_shadow.bench.report import Report, load, machine, versions
from langgraph_shadow.correction.advice import DEVIATIONS, recommend
from langgraph_shadow.correction.lab import ANSWER_TOKENS, Lab
from langgraph_shadow.correction.measure import KEPT, ROLE_LAST, measure
from langgraph_shadow.correction.model import Dtype
from langgraph_shadow.correction.model import load as load_model
from langgraph_shadow.correction.prompts import (
    Prompts,
    question_tokens,
    read_contexts,
    read_roles,
    role_prompts,
)
from langgraph_shadow.correction.settings import Settings
from langgraph_shadow.correction.spectrum import spectrum_rows
from langgraph_shadow.correction.table import chain_rows, context_rows, hop_rows

BENCH = "correction"


def run(
    model: Path,
    roles: Path,
    contexts: Sequence[Path],
    *,
    tokens: int = 512,
    continuation: int = 64,
    question: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    settings: Settings | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure how well these agents could share caches.

    Args:
        model: A Hugging Face model folder.
        roles: A JSON object from agent to role prompt, in the order in which they work.
        contexts: Text files that all agents read.
        tokens: Tokens taken of each context.
        continuation: Tokens after it, over which predictions are compared.
        question: Compare also over the agents' answers to this.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: Precision of weights and caches.
        settings: Sizes of the methods.
        say: Told what happens.

    Raises:
        ShadowError: A file cannot be used, or the lab cannot treat the model.
    """
    settings = settings or Settings()
    load_before, began, computed = load(), time.perf_counter(), time.process_time()
    asked = read_roles(roles)
    lab_model, tokenizer = load_model(model, device=device, dtype=dtype)
    head, prompts = role_prompts(tokenizer, asked)
    lab = Lab(
        lab_model,
        Prompts(
            head=head,
            roles=prompts,
            contexts=read_contexts(tokenizer, contexts, tokens=tokens, continuation=continuation),
            question=question_tokens(tokenizer, question) if question else None,
        ),
    )
    lab.prepare(say)
    found = measure(lab, settings, say)
    hops = hop_rows(lab, found)
    chains = chain_rows(found, len(prompts))
    differences = spectrum_rows(lab, say)
    return Report(
        bench=BENCH,
        machine={**machine(), "load_before": load_before, "load_after": load(), **_device(lab)},
        versions={**versions(), **{name: version(name) for name in ("torch", "transformers")}},
        server={"model": model.name, **_shape(lab)},
        settings={
            **{name: getattr(settings, name) for name in settings.__slots__},
            "contexts": len(contexts),
            "tokens": tokens,
            "continuation": continuation,
            "question": question,
            "role_tokens": {role.name: len(role.front) for role in prompts},
            "prefill_ms": round(lab.prefill_median_s * 1e3, 1),
            "dtype": dtype,
            "wall_s": round(time.perf_counter() - began, 1),
            "cpu_s": round(time.process_time() - computed, 1),
        },
        rows=[*hops, *chains, *differences, *context_rows(lab, found)],
        summary=_summary(hops),
        notes=[
            *recommend(hops, chains, agents=len(prompts), tokens=tokens),
            *(f"Differs from what was published. {line}" for line in DEVIATIONS),
            _reading(tokens, continuation, question),
        ],
    )


def _summary(hops: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kl = {row["method"]: row["kl"] for row in hops}
    sanity = [row for row in hops if row["kind"] in ("sanity", "exact")]
    ceilings = [row for row in hops if row["kind"] == "ceiling"]
    rotated = kl["rotated"]
    return {
        "role_effect_kl": kl[KEPT],
        "rotated_kl": rotated,
        "as_it_lies_kl": kl["as it lies"],
        "role_last_kl": kl[ROLE_LAST],
        "worst_sanity_kl": {row["method"]: row["worst_kl"] for row in sanity},
        "ceiling_removes": {
            row["method"]: round(1 - row["kl"] / rotated, 4) for row in ceilings if rotated
        },
    }


def _shape(lab: Lab) -> dict[str, Any]:
    model = lab.model
    return {
        "type": model.network.config.model_type,
        "layers": model.layers,
        "kv_heads": model.heads,
        "head_dim": model.head_dim,
        "full_rank": model.heads * model.head_dim,
    }


def _device(lab: Lab) -> dict[str, Any]:
    import torch

    device = lab.model.device
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device)}
    return {"device": "cpu", "threads": torch.get_num_threads()}


def _reading(tokens: int, continuation: int, question: str | None) -> str:
    said = (
        f"KL(exact ‖ reused) in nats, a mean over {continuation} tokens of the true continuation "
        f"of {tokens} tokens, then over the contexts; the role's effect is the KL of going on with "
        "the role and the cache of the agent before. Memory is given at 2 bytes per number."
    )
    if question:
        said += f" Answer: the same over the exact agent's {ANSWER_TOKENS} tokens to the question."
    return said
