"""The doctor on the real server, which is set up well."""

from __future__ import annotations

import json
from dataclasses import replace

import typer
from typer.testing import CliRunner

from langgraph_shadow.commands.doctor import doctor
from langgraph_shadow.server.client import ServerClient
from langgraph_shadow.server.doctor import check_server, examine
from langgraph_shadow.server.probes import probe_trunk, send_trunk
from langgraph_shadow.server.served import ServedModel, served_models
from tests.conftest import VllmServer

app = typer.Typer()
app.command()(doctor)


async def test_nothing_is_wrong_with_it(vllm_server: VllmServer) -> None:
    found = await examine(vllm_server.base_url, model=vllm_server.model)

    statuses = {f.check: f.status for f in found.findings}
    assert found.ok, found.findings
    assert statuses.pop("priority scheduling") in ("ok", "unknown")
    assert set(statuses.values()) == {"ok"}, found.findings
    assert len(statuses) == 14
    said = {f.check: f.detail for f in found.findings}
    assert said["block size"] == f"{vllm_server.metrics().block_size} tokens"
    assert said["branch"].startswith("user_turn: ")


async def test_the_check_asks_twice_and_names_what_is_there(vllm_server: VllmServer) -> None:
    before = vllm_server.requests_seen()
    checked = await check_server(vllm_server.root_url)

    assert vllm_server.requests_seen() == before + 2
    assert (checked.base_url, checked.model) == (vllm_server.base_url, vllm_server.model)
    assert checked.block_size == vllm_server.metrics().block_size


def test_the_command(vllm_server: VllmServer) -> None:
    outcome = CliRunner().invoke(app, [vllm_server.base_url, "--json"])
    wrong = CliRunner().invoke(app, [vllm_server.base_url, "--model", "gpt-nope", "--json"])

    assert outcome.exit_code == 0
    assert json.loads(outcome.stdout)["url"] == vllm_server.root_url
    assert wrong.exit_code == 1
    (finding,) = json.loads(wrong.stdout)["findings"]
    assert (finding["check"], finding["status"]) == ("reachable", "fail")
    assert "'gpt-nope'" in finding["detail"]
    assert finding["change"] == f"Use --model with one of: {vllm_server.model}."


async def test_what_the_doctor_counts_is_what_the_server_counts(vllm_server: VllmServer) -> None:
    """Tools left out of the request cost the tokens that the doctor looks for."""
    from langgraph_shadow.alignment.render_server import ServerRenderer
    from langgraph_shadow.server.checks import tools_kept
    from langgraph_shadow.server.probes import tokens_with_and_without_tools

    async with ServerClient(vllm_server.base_url) as server:
        renderer = ServerRenderer(server.post, model=vllm_server.model)
        (model, *_) = await served_models(server)
        line = await probe_trunk(renderer, model, metrics=vllm_server.metrics())
        counts = await tokens_with_and_without_tools(renderer, line)
        kept = await send_trunk(server, line)
        dropped = await send_trunk(server, replace(line, tools=()))

    assert isinstance(model, ServedModel)
    assert tools_kept(kept, counts).status == "ok"
    assert tools_kept(dropped, counts).status == "fail"
