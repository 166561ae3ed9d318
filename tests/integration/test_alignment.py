"""Carriers on the real server: what is predicted is what the server finds cached.

Needs a server that takes a chat template with the request (`--trust-request-chat-template`).
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from langgraph_shadow.alignment.blocks import common_prefix, predicted_cached
from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Prompt, RendererUnavailableError
from langgraph_shadow.alignment.render_server import ServerRenderer
from langgraph_shadow.alignment.survey import Scenario, survey, trunk
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import Trunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ZOO = Path(__file__).resolve().parents[1] / "unit/template_zoo"
ASK = "Is there something new to tell the user? One sentence, or SKIP."

CARRIERS = {
    "reasoning_gate": ["nonce_splice", "neutral_splice", "call_pair", "tool_append", "prefill"],
    "tools_move": ["nonce_splice", "neutral_splice", "call_pair", "tool_append", "prefill"],
    "dated": ["user_turn", "nonce_splice", "neutral_splice", "call_pair", "tool_append", "prefill"],
    "alternating": ["neutral_splice", "call_pair", "tool_append", "prefill"],
}
CASES = [(name, carrier) for name, fitting in CARRIERS.items() for carrier in fitting]


class Client:
    """The few calls that a runner makes."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self.http = http
        self.model = model

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.http.post(path, json=body)
        if response.status_code == 400:
            raise AlignmentError(response.text)
        if response.is_error:
            msg = f"{path} answered {response.status_code}"
            raise RendererUnavailableError(msg)
        return response.json()  # type: ignore[no-any-return]

    async def chat(self, prompt: Prompt, **fields: Any) -> dict[str, Any]:
        body = {
            "model": prompt.model,
            "messages": list(prompt.messages),
            "tools": list(prompt.tools),
            "tool_choice": "none",
            "add_generation_prompt": prompt.add_generation_prompt,
            "continue_final_message": prompt.continue_final_message,
            "max_tokens": 2,
            **prompt.fields,
            **fields,
        }
        return await self.post("/v1/chat/completions", body)

    async def complete(self, items: tuple[int, ...], **fields: Any) -> dict[str, Any]:
        body = {"model": self.model, "prompt": list(items), "max_tokens": 2, **fields}
        return await self.post("/v1/completions", body)


@pytest.fixture
async def client(vllm_server: Any) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(
        base_url=vllm_server.root_url, timeout=120, trust_env=False
    ) as http:
        yield Client(http, vllm_server.model)


@pytest.fixture
def renderer(client: Client) -> ServerRenderer:
    return ServerRenderer(client.post, model=client.model)


@pytest.fixture
def block_size(vllm_server: Any) -> int:
    size = vllm_server.metrics().block_size
    assert size
    return int(size)


def templated(name: str, model: str, **fields: Any) -> Trunk:
    """A trunk that brings its chat template along; its salt keeps other tests' blocks away."""
    source = (ZOO / f"{name}.jinja").read_text()
    line = trunk(Scenario(turns=1), model=model)
    return Trunk.build(
        key=line.key,
        model=model,
        messages=line.messages,
        tools=line.tools,
        fields={"chat_template": source, "cache_salt": uuid.uuid4().hex, **fields},
    )


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize(("name", "carrier"), CASES)
async def test_predicted_is_cached(
    name: str, carrier: str, client: Client, renderer: ServerRenderer, block_size: int
) -> None:
    line = templated(name, client.model)
    salt = {"cache_salt": line.fields["cache_salt"]}
    orchestrator = await client.chat(Prompt.of(line), return_token_ids=True)
    assert cached(orchestrator) == 0

    ladder = Ladder(carriers=[carrier], max_new=2000)
    aligned = await ladder.align(line, ASK, renderer, block_size=block_size)
    assert aligned.trunk.items == tuple(orchestrator["prompt_token_ids"])

    if aligned.prompt is not None:
        branch = await client.chat(aligned.prompt)
    else:
        assert aligned.items is not None
        branch = await client.complete(aligned.items, **salt)
    kept = common_prefix(aligned.branch.items, aligned.trunk.items)
    predicted = predicted_cached(kept, len(aligned.branch), block_size)
    assert branch["usage"]["prompt_tokens"] == len(aligned.branch)
    assert cached(branch) == predicted > 0
    assert aligned.needed - kept <= block_size


@pytest.mark.parametrize(
    ("name", "splice", "carrier"),
    [
        ("reasoning_gate", True, "nonce_splice"),
        ("reasoning_gate", False, "call_pair"),
        ("tools_move", True, "nonce_splice"),
        ("dated", True, "user_turn"),
        ("alternating", True, "neutral_splice"),
    ],
)
async def test_the_ladder_finds_its_carrier(
    name: str,
    splice: bool,
    carrier: str,
    client: Client,
    renderer: ServerRenderer,
    block_size: int,
) -> None:
    ladder = Ladder(splice=splice)
    aligned = await ladder.align(
        templated(name, client.model), ASK, renderer, block_size=block_size
    )
    assert aligned.carrier == carrier


async def test_a_user_turn_would_have_lost_the_loop(
    client: Client, renderer: ServerRenderer, block_size: int
) -> None:
    line = templated("reasoning_gate", client.model)
    with pytest.raises(AlignmentError) as refused:
        await Ladder(carriers=["user_turn"]).align(line, ASK, renderer, block_size=block_size)
    assert "through the end" in refused.value.tried["user_turn"]


async def test_a_spliced_answer_ends_its_turn_and_does_not_think(
    client: Client, renderer: ServerRenderer, block_size: int
) -> None:
    line = templated("reasoning_gate", client.model)
    aligned = await Ladder().align(line, ASK, renderer, block_size=block_size)
    assert aligned.opening is not None
    assert not aligned.opening.thinking
    assert aligned.opening.stop == await renderer.tokens("<|im_end|>")


async def test_an_effort_renders_as_the_chat_route_renders_it(
    client: Client, renderer: ServerRenderer
) -> None:
    line = templated("reasoning_gate", client.model, reasoning_effort="none")
    rendered = await renderer.render(Prompt.of(line))
    sent = await client.chat(Prompt.of(line), return_token_ids=True)
    assert rendered.items == tuple(sent["prompt_token_ids"])
    assert "</think>" in await renderer.text(rendered.items[-8:])


async def test_reasoning_under_its_old_name_is_not_lost(
    client: Client, renderer: ServerRenderer
) -> None:
    line = templated("reasoning_gate", client.model)
    old = [
        {("reasoning_content" if k == "reasoning" else k): v for k, v in m.items()}
        for m in line.messages
    ]
    prompt = Prompt.of(line).with_messages(old)
    sent = await client.chat(prompt, return_token_ids=True)
    assert (await renderer.render(prompt)).items == tuple(sent["prompt_token_ids"])


async def test_a_server_can_be_surveyed(client: Client, renderer: ServerRenderer) -> None:
    row = await survey(client.model, lambda _: renderer, model=client.model)
    assert row.usable
    assert row.kept_through_last_tool_result
