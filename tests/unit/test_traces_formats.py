"""The same run in every format: LangSmith runs, OpenTelemetry spans, chat-completions logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, message_to_dict
from langsmith import Client, tracing_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from langgraph_shadow.traces.breaks import find_breaks
from langgraph_shadow.traces.reader import TracedRequest
from langgraph_shadow.traces.recording import Recording, read_recording
from langgraph_shadow.trunk.model import TrunkKey
from tests.unit.guard_histories import TOOLS, loop

KEY = TrunkKey(thread="t-1", namespace="", node="agent")
STEADY, BROKEN = (0, 1, 2), 3
USAGE = {"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 64}}


def prompts() -> list[list[dict[str, Any]]]:
    """Four calls of an agent; the last one has another clock."""
    heads = ["It is 12:00."] * 3 + ["It is 12:05."]
    return [loop(n, head=head) for n, head in enumerate(heads)]


def read(folder: Path, records: Sequence[Any]) -> Recording:
    file = folder / "run.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return read_recording(file)


async def assert_only_the_clock(recording: Recording, key: TrunkKey = KEY) -> None:
    assert recording.unknown == ()
    assert [r.trunk.key for r in recording.requests] == [key] * 4
    (found,) = await find_breaks(recording.requests)
    assert (found.request, found.report.kind) == (recording.requests[BROKEN], "clock")
    assert (found.report.before, found.report.after) == ("12:00.", "12:05.")


def as_langchain(messages: Sequence[dict[str, Any]]) -> list[BaseMessage]:
    return convert_to_messages(list(messages))


def run(number: int, messages: Any, **more: Any) -> dict[str, Any]:
    """An LLM run as LangSmith's API returns it."""
    metadata = {
        "thread_id": "t-1",
        "langgraph_node": "agent",
        "langgraph_checkpoint_ns": f"agent:{number}",
    }
    return {
        "id": f"run-{number}",
        "trace_id": "trace",
        "run_type": "llm",
        "name": "ChatOpenAI",
        "start_time": f"2026-03-01T09:00:0{number}",
        "inputs": {"messages": messages},
        "outputs": {"llm_output": {"token_usage": USAGE}},
        "extra": {"invocation_params": {"model": "m", "tools": TOOLS}, "metadata": metadata},
        "error": None,
        **more,
    }


def constructors(messages: Sequence[dict[str, Any]]) -> Any:
    return [[dumpd(m) for m in as_langchain(messages)]]


def dictionaries(messages: Sequence[dict[str, Any]]) -> Any:
    return [message_to_dict(m) for m in as_langchain(messages)]


def bodies(messages: Sequence[dict[str, Any]]) -> Any:
    return list(messages)


@pytest.mark.parametrize("form", [constructors, dictionaries, bodies])
@pytest.mark.parametrize("as_text", [False, True])
async def test_langsmith_runs(tmp_path: Path, form: Any, as_text: bool) -> None:
    runs = [run(i, form(p)) for i, p in enumerate(prompts())]
    if as_text:  # a bulk export keeps each of them as JSON text
        runs = [
            {**r, **{k: json.dumps(r[k]) for k in ("inputs", "outputs", "extra")}} for r in runs
        ]

    recording = read(tmp_path, runs[::-1])

    assert recording.format == "langsmith"
    await assert_only_the_clock(recording)
    for request, messages in zip(recording.requests, prompts(), strict=True):
        sent = [{**m, "content": m["content"] or None} for m in messages]
        assert [dict(m, content=m["content"] or None) for m in request.trunk.messages] == sent
        assert list(request.trunk.tools) == TOOLS
        assert (request.prompt_tokens, request.cached_tokens) == (90, 64)


async def test_only_the_agents_own_calls_count(tmp_path: Path) -> None:
    own = [run(i, constructors(p)) for i, p in enumerate(prompts())]
    metadata = own[0]["extra"]["metadata"]

    def elsewhere(**more: Any) -> dict[str, Any]:
        extra = {**own[0]["extra"], "metadata": {**metadata, **more}}
        return run(9, constructors(loop(1, head="Summarise.")), id="other", extra=extra)

    others = [
        elsewhere(lc_source="summarization"),
        elsewhere(shadow_of_run="run-1", thread_id="t-1"),
        {"id": "tool", "run_type": "tool", "extra": {"metadata": metadata}},
        {"id": "inner", "run_type": "chain", "parent_run_id": "tool", "extra": {}},
        run(8, constructors(loop(1, head="In a tool.")), id="x", parent_run_id="inner",
            extra=own[0]["extra"]),
        {"id": "chain", "run_type": "chain", "inputs": {"messages": "none of ours"}},
    ]  # fmt: skip
    sub = elsewhere(thread_id="t-1", langgraph_checkpoint_ns="tools:1|agent:2")
    sub["parent_run_id"] = "inner"

    recording = read(tmp_path, [*own, *others])
    with_sub = read(tmp_path, [*own, *others, sub])

    await assert_only_the_clock(recording)
    assert [r.trunk.key for r in with_sub.requests][-1] == TrunkKey("t-1", "tools:1", "agent")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"inputs": {}}, "hidden or left out"),
        ({"inputs": None}, "hidden or left out"),
        ({"inputs": {"messages": "REDACTED"}}, "hidden or left out"),
        ({"inputs": {"messages": [[]]}}, "hidden or left out"),
        ({"inputs": '{"messages": [[{"lc": 1, "ty'}, "cuts it short"),
        ({"inputs": {"messages": [[{"lc": 2}]]}}, "of no known form"),
        ({"inputs": {"messages": [[{"type": "martian", "content": "x"}]]}}, "of no known form"),
        ({"error": "PrefixMutationError()", "outputs": None}, "may never have been sent"),
        *(
            ({"inputs": {"messages": [{"role": "system", "content": text}]}}, "is redacted")
            for text in ("[REDACTED]", "<hidden>", "***", "██████", "Today is [REDACTED DATE].")
        ),
    ],
)
def test_what_is_not_there_is_unknown(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    known = run(0, constructors(loop(0)))
    recording = read(tmp_path, [known, run(1, constructors(loop(1)), **more)])

    assert len(recording.requests) == 1
    (unknown,) = recording.unknown
    assert reason in unknown.reason
    assert (unknown.line, unknown.index, unknown.key) == (2, 1, KEY)


@pytest.mark.parametrize("text", ["[cleared]", "… [truncated]", "[removed]", "It was hidden."])
def test_what_an_agent_itself_left_out_is_known(tmp_path: Path, text: str) -> None:
    recording = read(tmp_path, [run(0, [{"role": "tool", "content": text}])])
    assert recording.unknown == ()


def parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message by OpenTelemetry's convention."""
    held: list[dict[str, Any]] = []
    if message["role"] == "tool":
        answer = {"id": message["tool_call_id"], "response": message["content"]}
        held.append({"type": "tool_call_response", **answer})
    elif message["content"]:
        held.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        held.append(
            {"type": "tool_call", "id": call["id"], "name": function["name"],
             "arguments": arguments}
        )  # fmt: skip
    return {"role": message["role"], "parts": held}


def span_attributes(messages: list[dict[str, Any]], *, apart: bool) -> dict[str, Any]:
    system, rest = ([parts(messages[0])], messages[1:]) if apart else ([], messages)
    found = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.conversation.id": "t-1",
        "gen_ai.agent.name": "agent",
        "gen_ai.input.messages": json.dumps([parts(m) for m in rest]),
        "gen_ai.tool.definitions": json.dumps(TOOLS),
        "gen_ai.usage.input_tokens": 90,
        "gen_ai.usage.cache_read.input_tokens": 64,
    }
    if system:
        found["gen_ai.system_instructions"] = json.dumps(system[0]["parts"])
    return found


def otlp(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value}


def as_printed(spans: list[dict[str, Any]]) -> list[Any]:
    return [
        {"name": "chat m", "context": {"trace_id": "0x1", "span_id": f"0x{i}"},
         "start_time": f"2026-03-01T09:00:0{i}.000000Z", "attributes": a, "events": []}
        for i, a in enumerate(spans)
    ]  # fmt: skip


def as_otlp(spans: list[dict[str, Any]]) -> list[Any]:
    def span(i: int, attributes: dict[str, Any]) -> dict[str, Any]:
        pairs = [{"key": k, "value": otlp(v)} for k, v in attributes.items()]
        start = str(1772355600000000000 + i * 10**9)
        return {"traceId": "1", "spanId": str(i), "startTimeUnixNano": start, "attributes": pairs}

    held = [span(i, a) for i, a in enumerate(spans)]
    return [{"resourceSpans": [{"scopeSpans": [{"spans": h}]}]} for h in (held[:1], held[1:])]


def as_events(spans: list[dict[str, Any]]) -> list[Any]:
    """The content on an event of the span, as the convention also allows."""
    printed = as_printed(spans)
    for span in printed:
        content = {k: v for k, v in span["attributes"].items() if "messages" in k}
        span["attributes"] = {k: v for k, v in span["attributes"].items() if k not in content}
        name = "gen_ai.client.inference.operation.details"
        span["events"] = [{"name": name, "attributes": content}]
    return printed


@pytest.mark.parametrize("export", [as_printed, as_otlp, as_events])
@pytest.mark.parametrize("apart", [False, True])
async def test_spans_by_the_convention(tmp_path: Path, export: Any, apart: bool) -> None:
    spans = [span_attributes(p, apart=apart) for p in prompts()]
    recording = read(tmp_path, export(spans))

    assert recording.format == "otel"
    await assert_only_the_clock(recording)
    for request, messages in zip(recording.requests, prompts(), strict=True):
        assert [dict(m) for m in request.trunk.messages] == messages
        assert (request.prompt_tokens, request.cached_tokens) == (90, 64)
        assert request.time is not None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"gen_ai.input.messages": None}, "content capture was off"),
        ({"gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "te'}, "cuts it short"),
        ({"gen_ai.input.messages": '[{"role": "user"}]'}, "no role and parts"),
        ({"gen_ai.input.messages": '["x"]'}, "no role and parts"),
    ],
)
def test_a_span_without_its_content_is_unknown(
    tmp_path: Path, more: dict[str, Any], reason: str
) -> None:
    attributes = {**span_attributes(loop(1), apart=False), **more}
    recording = read(tmp_path, as_printed([attributes]))

    assert recording.requests == ()
    assert reason in recording.unknown[0].reason
    assert recording.unknown[0].key == KEY


async def test_langsmiths_own_spans(tmp_path: Path) -> None:
    """Exported by LangSmith's client from a traced model, through OpenTelemetry's SDK."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client = Client(
        api_key="x",
        session=MagicMock(),
        info={},
        auto_batch_tracing=True,
        tracing_mode="otel",
        otel_tracer_provider=provider,
    )
    counted = {
        "input_tokens": 90,
        "output_tokens": 1,
        "total_tokens": 91,
        "input_token_details": {"cache_read": 64},
    }
    model = FakeMessagesListChatModel(
        responses=[AIMessage("ok", usage_metadata=counted) for _ in range(4)]
    )
    metadata = {"thread_id": "t-1", "langgraph_node": "agent", "checkpoint_ns": "agent:1"}
    with tracing_context(enabled=True, client=client):
        for messages in prompts():
            model.invoke(as_langchain(messages), {"metadata": metadata}, tools=TOOLS)
    client.flush()
    spans = exporter.get_finished_spans()

    recording = read(tmp_path, [json.loads(span.to_json()) for span in spans])

    await assert_only_the_clock(recording)
    assert list(recording.requests[0].trunk.tools) == TOOLS
    assert {r.cached_tokens for r in recording.requests} == {64}


def log(number: int, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": messages, "tools": TOOLS}
    response = {"choices": [], "usage": USAGE}
    return {"request": body, "response": response, "time": 100 + number, **more}


def plain(entry: dict[str, Any]) -> dict[str, Any]:
    return entry


def with_bodies(entry: dict[str, Any]) -> dict[str, Any]:
    request = {"method": "POST", "headers": {}, "body": json.dumps(entry["request"])}
    response = {"status_code": 200, "body": entry["response"]}
    return {**entry, "request": request, "response": response}


def streamed(entry: dict[str, Any]) -> dict[str, Any]:
    chunks = [{"choices": [{}]}, {"choices": [], "usage": entry["response"]["usage"]}, {}]
    return {**entry, "response": chunks}


@pytest.mark.parametrize("form", [plain, with_bodies, streamed])
async def test_chat_logs(tmp_path: Path, form: Any) -> None:
    entries = [form(log(i, p, thread_id="t-1", node="agent")) for i, p in enumerate(prompts())]
    recording = read(tmp_path, entries[::-1])

    assert recording.format == "chat"
    await assert_only_the_clock(recording)
    assert {(r.prompt_tokens, r.cached_tokens) for r in recording.requests} == {(90, 64)}


async def test_a_log_without_threads_is_sorted_into_conversations(tmp_path: Path) -> None:
    def other(n: int) -> list[dict[str, Any]]:
        messages = loop(n, head="Another agent.")
        messages[1] = {"role": "user", "content": "What is a fjord?"}
        return messages

    entries: list[dict[str, Any]] = []
    for i, messages in enumerate(prompts()):
        entries += [log(2 * i, messages), log(2 * i + 1, other(i))]

    recording = read(tmp_path, entries)

    assert len({r.trunk.key for r in recording.requests}) == 2
    (found,) = await find_breaks(recording.requests)
    assert found.report.kind == "clock"


def test_a_logged_request_without_messages_is_unknown(tmp_path: Path) -> None:
    recording = read(tmp_path, [log(0, loop(0)), {"request": {"model": "m"}, "thread_id": "t-1"}])
    assert [(u.line, u.key.thread) for u in recording.unknown] == [(2, "t-1")]


@pytest.mark.parametrize(
    ("usage", "prompt", "cached"),
    [
        (USAGE, 90, 64),
        ({"input_tokens": 90, "input_token_details": {"cache_read": 0}}, 90, 0),
        ({"input_tokens": 90, "input_tokens_details": {"cached_tokens": 64}}, 90, 64),
        ({"input_tokens": 90, "cache_read_input_tokens": 64}, 90, 64),
        ({"prompt_tokens": 90, "prompt_tokens_details": None}, 90, None),
        (None, None, None),
    ],
)
def test_token_counts_in_every_dialect(usage: Any, prompt: int | None, cached: int | None) -> None:
    request = TracedRequest(0, 1, MagicMock(), usage=usage)
    assert (request.prompt_tokens, request.cached_tokens) == (prompt, cached)
