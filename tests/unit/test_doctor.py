"""The doctor, on servers that are set up badly in every way it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from langgraph_shadow.commands.doctor import doctor
from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server.doctor import check_server, examine
from tests.unit.vllm_lookalike import BLOCK, lookalike

app = typer.Typer()
app.command()(doctor)

WELL = {
    "reachable": "ok",
    "version": "ok",
    "models": "ok",
    "prefix caching": "ok",
    "block size": "ok",
    "cached tokens reported": "ok",
    "same prompt twice": "ok",
    "tools kept": "ok",
    "tool calls": "ok",
    "priority scheduling": "unknown",
    "template": "ok",
    "agent's loop": "ok",
    "new user turn": "ok",
    "branch": "ok",
    "shorter prefix": "ok",
}

CASES: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({}, {}, ""),
    (
        {"caching": False},
        {
            "prefix caching": "fail",
            "same prompt twice": "fail",
            "branch": "fail",
            "shorter prefix": "fail",
        },
        "--enable-prefix-caching",
    ),
    (
        {"reporting": False},
        {
            "cached tokens reported": "fail",
            "same prompt twice": "unknown",
            "branch": "unknown",
            "shorter prefix": "unknown",
        },
        "--enable-prompt-tokens-details",
    ),
    (
        {"keeps_tools": False},
        {"tools kept": "fail", "branch": "unknown", "shorter prefix": "unknown"},
        "--exclude-tools-when-tool-choice-none",
    ),
    ({"renders_tools": False}, {"tools kept": "warn"}, "a template that renders tools"),
    ({"calls_tools": False}, {"tool calls": "warn"}, "--enable-auto-tool-choice"),
    (
        {"takes_priority": False},
        {"priority scheduling": "warn"},
        "--scheduling-policy priority",
    ),
    ({"policy": "fcfs"}, {"priority scheduling": "warn"}, "--scheduling-policy priority"),
    ({"policy": "priority"}, {"priority scheduling": "ok"}, ""),
    (
        {"retained": 2 * BLOCK},
        {"same prompt twice": "warn", "branch": "warn", "shorter prefix": "warn"},
        "--prefix-cache-retention-interval",
    ),
    ({"forgets_reasoning": True}, {"new user turn": "warn"}, '{"preserve_thinking": true}'),
    (
        {"has_metrics": False},
        {
            "prefix caching": "unknown",
            "block size": "warn",
            "same prompt twice": "unknown",
            "branch": "unknown",
            "shorter prefix": "unknown",
        },
        "/metrics",
    ),
]


def statuses(found: Any) -> dict[str, str]:
    return {f.check: f.status for f in found.findings}


@pytest.mark.parametrize(("setup", "otherwise", "flag"), CASES, ids=lambda v: str(v)[:40])
async def test_each_fault_is_found_and_nothing_else(
    setup: dict[str, Any], otherwise: dict[str, str], flag: str
) -> None:
    with lookalike(**setup) as server:
        found = await examine(f"{server.url}/v1")

    assert found.url == server.url
    assert statuses(found) == {**WELL, **otherwise}
    assert found.ok == ("fail" not in otherwise.values())
    said = " ".join(f.change for f in found.findings if f.check in otherwise)
    assert flag in said
    for finding in found.findings:
        assert finding.detail
        assert finding.change or finding.status in ("ok", "unknown")


async def test_without_tokenize_nothing_is_proved() -> None:
    with lookalike(tokenizes=False) as server:
        found = await examine(server.url)

    assert found.ok
    assert statuses(found)["template"] == "warn"
    assert statuses(found)["tools kept"] == "unknown"
    assert statuses(found)["same prompt twice"] == "ok"
    assert "branch" not in statuses(found)


async def test_a_template_without_tool_calls_is_not_usable() -> None:
    with lookalike() as server:
        server.render = lambda body: "".join(  # type: ignore[method-assign]
            f"<{m['role']}>{m.get('content')}" for m in body["messages"] if m["role"] != "tool"
        )
        found = await examine(server.url)

    assert not found.ok
    assert statuses(found)["template"] == "fail"
    assert statuses(found)["same prompt twice"] == "ok"
    assert not {"tools kept", "branch", "new user turn"} & statuses(found).keys()


async def test_the_carrier_that_a_template_needs_is_named() -> None:
    with lookalike(forgets_reasoning=True) as server:
        found = await examine(server.url)

    (template,) = [f for f in found.findings if f.check == "template"]
    assert template.detail.startswith("nonce_splice keeps ")
    assert "preserve_thinking" in template.change


async def test_a_missing_route_is_told_in_the_servers_own_words() -> None:
    with lookalike(chats=False) as server:
        found = await examine(server.url)

    said = {f.check: f.detail for f in found.findings}
    assert statuses(found)["same prompt twice"] == "unknown"
    assert "HTTP 404" in said["same prompt twice"]
    with (
        lookalike(chats=False) as server,
        pytest.raises(ServerConfigError, match="no chat completion"),
    ):
        await check_server(server.url)


async def test_a_good_server_passes_the_check() -> None:
    with lookalike(models=("m", "n"), api_key="secret") as server:
        checked = await check_server(server.url, model="n", api_key="secret")

    assert (checked.base_url, checked.model, checked.block_size) == (
        f"{server.url}/v1",
        "n",
        BLOCK,
    )
    assert server.requests == 2


@pytest.mark.parametrize(
    ("setup", "options", "problem", "remedy"),
    [
        ({"caching": False}, {}, "Prefix caching is off", "--enable-prefix-caching"),
        (
            {"caching": False, "has_metrics": False},
            {},
            "sent twice is not cached",
            "--enable-prefix-caching",
        ),
        ({"reporting": False}, {}, "not reported", "--enable-prompt-tokens-details"),
        ({}, {"model": "n"}, "does not serve 'n'", "--model with one of: m"),
        ({"models": ()}, {}, "serves no model", "Start it with a model"),
        ({"api_key": "secret"}, {}, "refused the API key", "LANGGRAPH_SHADOW_API_KEY"),
    ],
)
async def test_a_bad_server_is_an_error_that_says_what_to_change(
    monkeypatch: pytest.MonkeyPatch,
    setup: dict[str, Any],
    options: dict[str, Any],
    problem: str,
    remedy: str,
) -> None:
    monkeypatch.delenv("LANGGRAPH_SHADOW_API_KEY", raising=False)
    with lookalike(**setup) as server, pytest.raises(ServerConfigError) as raised:
        await check_server(server.url, **options)

    assert problem in str(raised.value)
    assert remedy in raised.value.remedy
    assert raised.value.url == f"{server.url}/v1"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[bad", ""])
async def test_no_server_there(url: str) -> None:
    with pytest.raises(ServerConfigError, match="No model server answers"):
        await check_server(url)
    found = await examine(url)
    assert [f.status for f in found.findings] == ["fail"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})


def test_the_command() -> None:
    with lookalike(keeps_tools=False, api_key="secret") as server:
        as_json = run(server.url, "--json", "--api-key", "secret")
        plain = run(server.url, "--api-key", "secret")
        refused = run(server.url, "--json")

    said = json.loads(as_json.stdout)
    assert as_json.exit_code == plain.exit_code == refused.exit_code == 1
    assert said.keys() == {"url", "ok", "findings"}
    assert (said["url"], said["ok"]) == (server.url, False)
    assert all(f.keys() == {"check", "status", "detail", "change"} for f in said["findings"])
    assert {f["check"]: f["status"] for f in said["findings"]}["tools kept"] == "fail"
    assert "--exclude-tools-when-tool-choice-none" in plain.stdout
    assert json.loads(refused.stdout)["findings"][0]["status"] == "fail"


def test_the_command_on_a_good_server() -> None:
    with lookalike() as server:
        outcome = run(server.url, "--json")

    assert outcome.exit_code == 0
    assert json.loads(outcome.stdout)["ok"]
