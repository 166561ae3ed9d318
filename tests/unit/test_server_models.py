"""The embedded models' folders and their chat template."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server import models

SOURCE = Path(models.__file__).with_name("chatml_tools.jinja").read_text()
ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
ENVIRONMENT.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
TEMPLATE = ENVIRONMENT.from_string(SOURCE)
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}},
]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
call = st.fixed_dictionaries(
    {
        "id": text,
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["search", "read"]),
                "arguments": st.dictionaries(text, text, max_size=2),
            }
        ),
    }
)
step = st.tuples(st.one_of(st.none(), text), st.lists(call, min_size=1, max_size=3), text)


def render(messages: list[dict], tools: list[dict] | None = None, **kwargs: object) -> str:
    kwargs.setdefault("add_generation_prompt", True)
    return TEMPLATE.render(messages=messages, tools=tools, **kwargs)


def loop(steps: list[tuple], *, system: str | None) -> list[list[dict]]:
    """The history at each model call of a tool loop."""
    history = [{"role": "system", "content": system}] if system is not None else []
    history.append({"role": "user", "content": "Go."})
    calls_seen = [list(history)]
    for content, calls, result in steps:
        history.append({"role": "assistant", "content": content, "tool_calls": calls})
        history += [{"role": "tool", "tool_call_id": c["id"], "content": result} for c in calls]
        calls_seen.append(list(history))
    return calls_seen


def test_a_tool_loop_reads_like_this() -> None:
    arguments = '{"q": "snow"}'
    calls = [{"id": str(i), "function": {"name": "search", "arguments": arguments}} for i in "12"]
    messages = loop([("Looking.", calls, "white")], system="Be brief.")[-1]
    assert render(messages, TOOLS) == (
        "<|im_start|>system\nBe brief.\n\nYou can call these tools:\n<tools>\n"
        + "".join(json.dumps(tool) + "\n" for tool in TOOLS)
        + "</tools>\nTo call a tool, answer with its name and arguments as JSON:\n"
        '<tool_call>\n{"name": "tool", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nGo.<|im_end|>\n"
        "<|im_start|>assistant\nLooking."
        '\n<tool_call>\n{"name": "search", "arguments": {"q": "snow"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "search", "arguments": {"q": "snow"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nwhite\n</tool_response>\n"
        "<tool_response>\nwhite\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@given(st.lists(step, min_size=1, max_size=4), st.one_of(st.none(), text), st.booleans())
def test_each_call_of_a_tool_loop_extends_the_one_before(
    steps: list[tuple], system: str | None, with_tools: bool
) -> None:
    tools = TOOLS if with_tools else None
    histories = loop(steps, system=system)
    for shorter, longer in itertools.pairwise(histories):
        assert render(longer, tools).startswith(render(shorter, tools))


@given(st.lists(step, min_size=1, max_size=3), text)
def test_a_user_turn_after_the_tool_results_keeps_the_whole_trunk(
    steps: list[tuple], instruction: str
) -> None:
    trunk = loop(steps, system="s")[-1]
    branch = render([*trunk, {"role": "user", "content": instruction}], TOOLS)
    kept = render(trunk, TOOLS, add_generation_prompt=False)
    assert branch == f"{kept}<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n"


def test_arguments_as_text_and_as_an_object_read_the_same() -> None:
    as_object, as_text = (
        loop(
            [("", [{"id": "1", "function": {"name": "f", "arguments": arguments}}], "r")], system=""
        )
        for arguments in ({"é": 1}, '{"é": 1}')
    )
    assert render(as_object[-1]) == render(as_text[-1])


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_flags_change_nothing(thinking: bool) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert render(messages, enable_thinking=thinking) == render(messages)


def test_no_messages_and_no_tools_give_the_generation_prompt_only() -> None:
    assert render([]) == "<|im_start|>assistant\n"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LANGGRAPH_SHADOW_CACHE", str(tmp_path))
    return tmp_path


def test_the_tiny_folder_is_built_once_and_complete(cache: Path) -> None:
    folder = models.tiny_qwen3_folder()
    config = json.loads((folder / "config.json").read_text())
    assert folder.is_relative_to(cache)
    assert (config["num_hidden_layers"], config["hidden_size"]) == (4, 256)
    assert config["max_position_embeddings"] == 32768
    assert (folder / "chat_template.jinja").read_text() == SOURCE
    assert (folder / "tokenizer.json").is_file()
    built = (folder / "model.safetensors").stat().st_mtime_ns
    assert models.tiny_qwen3_folder() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == built


def test_two_builders_at_once_leave_one_whole_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "check_packages", lambda: None)
    barrier = multiprocessing.get_context("fork").Barrier(2)

    def build(_: str, out: Path) -> None:
        barrier.wait(30)
        (out / "whole").write_text("")

    monkeypatch.setattr(models, "_build", build)
    other = multiprocessing.get_context("fork").Process(target=models.smollm2_folder)
    other.start()
    folder = models.smollm2_folder()
    other.join(30)
    assert other.exitcode == 0
    assert [path.name for path in (cache / "models").iterdir()] == [folder.name]
    assert (folder / "whole").is_file()


def test_a_failed_build_says_why_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "check_packages", lambda: None)
    failed = SimpleNamespace(returncode=1, stderr="Traceback…\nOSError: disk full\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ServerConfigError, match="smollm2 could not be built") as caught:
        models.smollm2_folder()
    assert "disk full" in str(caught.value)
    assert list((cache / "models").iterdir()) == []


def test_the_cache_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LANGGRAPH_SHADOW_CACHE", raising=False)
    monkeypatch.setattr(models.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_dir() == tmp_path / "langgraph-shadow"
    monkeypatch.setattr(models.sys, "platform", "darwin")
    assert models.cache_dir().parts[-3:] == ("Library", "Caches", "langgraph-shadow")
