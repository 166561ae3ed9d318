"""Traces of branches: roots of their own, linked, complete, and harmless when a tracer fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers import LangChainTracer
from langchain_core.tracers.context import tracing_v2_enabled
from langsmith import traceable, tracing_context
from langsmith.utils import get_env_var, get_tracer_project
from pydantic import BaseModel

from langgraph_shadow import Branch, user_update
from langgraph_shadow.delivery.ledger import LedgerRow
from langgraph_shadow.delivery.tracers import Account, Tracer
from langgraph_shadow.delivery.traces import BranchTrace, Cause, Traces
from langgraph_shadow.trunk.model import Trunk, TrunkKey
from tests.langsmith_endpoint import LangSmithEndpoint, langsmith_endpoint

SECRET = "the patient's name is Ada"
TRUNK = Trunk.build(
    key=TrunkKey(thread="t1", namespace="child:1", node="agent"),
    model="served",
    messages=[{"role": "system", "content": SECRET}, {"role": "user", "content": SECRET}],
    tools=[{"type": "function", "function": {"name": "search"}}],
)
METADATA = {"thread_id": "t1", "user": "ada", "langgraph_step": 3}


@pytest.fixture
def endpoint() -> Iterator[LangSmithEndpoint]:
    with langsmith_endpoint() as endpoint:
        yield endpoint


def row(**changes: Any) -> LedgerRow:
    values: dict[str, Any] = {
        "branch": "user_update",
        "mode": "shared",
        "thread": "t1",
        "namespace": "child:1",
        "tool_call_ids": ("c1", "c2"),
        "launch": "follow",
        "exact": True,
        "verdict": "update",
        "carrier": "user_turn",
        "kept": 90,
        "prompt_tokens": 100,
        "predicted": 64,
        "cached": 64,
        "generated": 7,
        "ttft_ms": 12.5,
        "lag_ms": 80.0,
        "text": "Glaciers shrink.",
        "delivered": True,
    }
    return LedgerRow(**(values | changes))


@dataclass
class Seen(BaseCallbackHandler):
    """Captures at a model call, as the shadow's own handler does."""

    traces: Traces
    cause: Cause | None = None
    tracers: tuple[Tracer, ...] = ()
    run_id: UUID | None = None
    run_inline: bool = field(default=True)

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, parent_run_id: Any, **kwargs: Any
    ) -> None:
        self.run_id = run_id
        self.cause = self.traces.cause(run_id, parent_run_id, None, METADATA)
        self.tracers = self.traces.tracers()


def seen_in_a_run(traces: Traces, *callbacks: BaseCallbackHandler) -> Seen:
    """An orchestrator of one chain with one model call, from beginning to end."""
    seen = Seen(traces)
    model = GenericFakeChatModel(messages=iter([AIMessage("hello")]))
    chain = RunnableLambda(lambda text: model.invoke(text)).with_config(run_name="orchestrator")
    chain.invoke("hi", {"callbacks": [seen, *callbacks]})
    return seen


def opened(
    traces: Traces, seen: Seen, branch: Branch | None = None, **options: Any
) -> BranchTrace | None:
    values = {"step": 3, "cause": seen.cause, "tracers": seen.tracers} | options
    return traces.open(branch or user_update(), TRUNK, **values)


def ended(traces: Traces, seen: Seen, data: dict[str, Any] | None = None, **changes: Any) -> UUID:
    trace = opened(traces, seen)
    assert trace is not None
    trace.end(row(**changes), data)
    assert traces.join(30)
    return trace.run_id


def test_a_branch_is_a_root_beside_the_orchestrators_tree(endpoint: LangSmithEndpoint) -> None:
    traces = Traces()
    with tracing_context(enabled=True, client=endpoint.client, project_name="p"):
        seen = seen_in_a_run(traces)
        run_id = ended(traces, seen)  # the orchestrator's root has ended, its context goes on
    assert [r["name"] for r in endpoint.runs if r["id"] != str(run_id)] == [
        "orchestrator",
        "GenericFakeChatModel",
    ]
    root = endpoint.runs[0]
    (branch,) = endpoint.branches
    assert branch["id"] == branch["trace_id"] == str(run_id)
    assert branch.get("parent_run_id") is None
    assert branch["dotted_order"].endswith(str(run_id))
    assert "." not in branch["dotted_order"]
    assert (branch["name"], branch["run_type"]) == ("shadow:user_update", "llm")
    assert branch["session_name"] == "p"
    assert branch["tags"] == ["shadow"]
    assert branch.get("error") is None
    assert branch["end_time"] > branch["start_time"] > root["end_time"]

    metadata = branch["extra"]["metadata"]
    expected = {
        "thread_id": "t1",
        "shadow_of_run": str(seen.run_id),
        "shadow_of_trace": root["id"],
        "shadow_of_tool_calls": ["c1", "c2"],
        "branch": "user_update",
        "namespace": "child:1",
        "node": "agent",
        "step": 3,
        "mode": "shared",
        "launch": "follow",
        "exact": True,
        "carrier": "user_turn",
        "kept": 90,
        "prompt_tokens": 100,
        "predicted": 64,
        "cached": 64,
        "generated": 7,
        "ttft_ms": 12.5,
        "lag_ms": 80.0,
        "verdict": "update",
        "delivered": True,
        "late": False,
        "ls_provider": "vllm",
        "ls_model_name": "served",
        "ls_model_type": "chat",
        "usage_metadata": {
            "input_tokens": 100,
            "output_tokens": 7,
            "total_tokens": 107,
            "input_token_details": {"cache_read": 64},
        },
    }
    assert {k: v for k, v in metadata.items() if k in expected} == expected


def test_the_trunk_is_not_sent_a_second_time(endpoint: LangSmithEndpoint) -> None:
    traces = Traces()
    with tracing_context(enabled=True, client=endpoint.client):
        ended(traces, seen_in_a_run(traces))
    (branch,) = endpoint.branches
    assert SECRET not in str(branch)
    assert branch["inputs"] == {
        "instruction": user_update().instruction,
        "carrier": "user_turn",
        "trunk": {"messages": 2, "tools": 1, "fingerprint": TRUNK.fingerprint},
    }
    assert branch["outputs"] == {"verdict": "update", "text": "Glaciers shrink."}


def test_a_failed_branch_has_an_error_and_an_object_is_an_output(
    endpoint: LangSmithEndpoint,
) -> None:
    traces = Traces()
    with tracing_context(enabled=True, client=endpoint.client):
        seen = seen_in_a_run(traces)
        failed = ended(
            traces, seen, verdict="failed", text="", reason="no answer", prompt_tokens=None
        )
        checked = ended(traces, seen, {"verdict": "supported"}, text="")
    runs = {b["id"]: b for b in endpoint.branches}
    assert runs[str(failed)]["error"] == "no answer"
    assert "usage_metadata" not in runs[str(failed)]["extra"]["metadata"]
    assert runs[str(checked)]["outputs"] == {"verdict": "update", "data": {"verdict": "supported"}}


@pytest.mark.parametrize("enabled", [False, "local"])
def test_a_context_without_tracing_is_respected(endpoint: LangSmithEndpoint, enabled: Any) -> None:
    traces = Traces()
    with tracing_context(enabled=enabled, client=endpoint.client):
        seen = seen_in_a_run(traces, LangChainTracer(client=endpoint.client))
    assert seen.cause is not None
    assert seen.tracers == ()
    assert opened(traces, seen) is None
    assert endpoint.branches == []


@contextlib.contextmanager
def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Iterator[None]:
    """Variables that langsmith reads; it caches them."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    get_env_var.cache_clear()
    get_tracer_project.cache_clear()
    try:
        yield
    finally:
        for name in variables:
            monkeypatch.delenv(name)
        get_env_var.cache_clear()
        get_tracer_project.cache_clear()


def test_the_environment_switches_tracing_on(
    endpoint: LangSmithEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = Traces()
    assert seen_in_a_run(traces).tracers == ()
    variables = {"LANGSMITH_TRACING": "true", "LANGSMITH_PROJECT": "from-environment"}
    with environment(monkeypatch, **variables), tracing_context(client=endpoint.client):
        seen = seen_in_a_run(traces)
        ended(traces, seen)
    (branch,) = endpoint.branches
    assert branch["session_name"] == "from-environment"


def test_a_tracer_among_the_callbacks_is_enough(endpoint: LangSmithEndpoint) -> None:
    traces = Traces()
    tracer = LangChainTracer(
        project_name="own",
        client=endpoint.client,
        tags=["prod"],
        metadata={"tenant": "x", "ls_agent_type": "root"},
    )
    ended(traces, seen_in_a_run(traces, tracer))
    (branch,) = endpoint.branches
    assert branch["session_name"] == "own"
    assert branch["tags"] == ["prod", "shadow"]
    assert branch["extra"]["metadata"]["tenant"] == "x"
    assert "ls_agent_type" not in branch["extra"]["metadata"]


@pytest.mark.parametrize(
    "switched_on",
    [
        lambda client: tracing_v2_enabled("own", client=client),
        lambda client: tracing_context(enabled=True, project_name="own", client=client),
    ],
)
@pytest.mark.parametrize("in_a_chain", [True, False])
def test_a_context_with_tracing_is_enough(
    endpoint: LangSmithEndpoint, switched_on: Any, in_a_chain: bool
) -> None:
    traces = Traces()
    seen = Seen(traces)
    with switched_on(endpoint.client):
        if in_a_chain:
            seen = seen_in_a_run(traces)
        else:
            model = GenericFakeChatModel(messages=iter([AIMessage("hello")]))
            model.invoke("hi", {"callbacks": [seen]})
    ended(traces, seen)
    (branch,) = endpoint.branches
    assert branch["session_name"] == "own"
    assert branch["extra"]["metadata"]["shadow_of_trace"] == endpoint.runs[0]["id"]


def test_the_trace_may_begin_above_the_callbacks(endpoint: LangSmithEndpoint) -> None:
    traces = Traces()

    @traceable(name="service", client=endpoint.client, project_name="service-project")
    def service() -> Seen:
        return seen_in_a_run(traces)

    with tracing_context(enabled=True, client=endpoint.client):
        ended(traces, service())
    service_run = next(r for r in endpoint.runs if r["name"] == "service")
    (branch,) = endpoint.branches
    assert branch["extra"]["metadata"]["shadow_of_trace"] == service_run["id"]
    assert branch["session_name"] == "service-project"


def test_without_a_thread_no_thread_is_made_up() -> None:
    run_id, root = uuid4(), uuid4()
    traces = Traces()
    assert traces.cause(run_id, uuid4(), root, {}).thread == {}
    assert traces.cause(run_id, uuid4(), root, {"session_id": 7}).thread == {"session_id": "7"}
    assert traces.cause(run_id, uuid4(), root, {}).trace_id == root
    assert traces.cause(run_id, None, None, {}).trace_id == run_id


class Broken:
    """A tracer whose runs cannot be opened, or cannot be ended."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, name: str, run_id: UUID, started: int) -> Any:
        if self.where == "open":
            raise ConnectionError("tracing is down")
        return self.end

    def end(self, account: Account) -> None:
        raise ConnectionError("tracing is down")


class Kept:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.accounts: list[Account] = []

    def open(self, name: str, run_id: UUID, started: int) -> Any:
        return self.accounts.append


@pytest.mark.parametrize("where", ["open", "end"])
def test_a_broken_tracer_is_named_once_and_hurts_no_other(
    caplog: pytest.LogCaptureFixture, where: str
) -> None:
    traces, kept = Traces(), Kept()
    seen = Seen(traces, traces.cause(uuid4(), None, None, {}), (Broken(where), kept))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            ended(traces, seen)
    assert len(kept.accounts) == 3
    assert len(caplog.records) == 1
    assert "tracing is down" in caplog.text


def test_a_capture_that_fails_is_no_trace(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a callback manager of another kind")

    monkeypatch.setattr("langgraph_shadow.delivery.traces.langchain_tracer", fail)
    monkeypatch.setattr("langgraph_shadow.delivery.tracers.langchain_tracer", fail)
    traces = Traces()
    with caplog.at_level(logging.WARNING), tracing_context(enabled=True):
        cause = traces.cause(uuid4(), None, None, METADATA)
        assert traces.tracers() == ()
    assert cause.thread == {"thread_id": "t1"}
    assert len(caplog.records) == 1


def test_an_exporter_that_hangs_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    traces, kept, going = Traces(size=2), Kept(), threading.Event()

    class Hanging(Kept):
        def open(self, name: str, run_id: UUID, started: int) -> Any:
            return lambda account: going.wait(30)

    cause = traces.cause(uuid4(), None, None, {})
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            trace = opened(traces, Seen(traces, cause, (Hanging(),)))
            assert trace is not None
            trace.end(row(), None)
        assert not traces.join(0.01)
    assert len(caplog.records) == 1
    assert "Full" in caplog.text
    going.set()
    assert traces.join(30)
    ended(traces, Seen(traces, cause, (kept,)))
    assert len(kept.accounts) == 1


def test_nothing_blocks_the_event_loop(endpoint: LangSmithEndpoint) -> None:
    traces = Traces()

    async def run() -> None:
        with tracing_context(enabled=True, client=endpoint.client):
            seen = await asyncio.to_thread(seen_in_a_run, traces)
            with blockbuster_ctx():
                assert traces.tracers()
                traces.cause(uuid4(), None, None, METADATA)
                trace = opened(traces, seen)
                assert trace is not None
                trace.end(row(), None)
        assert await asyncio.to_thread(traces.join, 30)

    asyncio.run(run())
    assert len(endpoint.branches) == 1


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tracer provider as a user would set one up, for one test."""
    pytest.importorskip("opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def test_a_branch_is_a_root_span_linked_to_its_cause(spans: Any) -> None:
    from opentelemetry import trace

    traces = Traces()
    with trace.get_tracer("test").start_as_current_span("orchestrator") as cause:
        seen = seen_in_a_run(traces)
        run_id = ended(traces, seen)
    (span, orchestrator) = spans.get_finished_spans()
    assert orchestrator.name == "orchestrator"
    assert span.name == "shadow:user_update"
    assert span.parent is None
    assert span.context.trace_id != orchestrator.context.trace_id
    assert [link.context for link in span.links] == [cause.get_span_context()]
    assert span.end_time > span.start_time
    assert span.status.is_ok
    attributes = dict(span.attributes)
    assert attributes["gen_ai.request.model"] == "served"
    assert attributes["gen_ai.conversation.id"] == "t1"
    assert attributes["gen_ai.usage.input_tokens"] == 100
    assert attributes["gen_ai.usage.output_tokens"] == 7
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 64
    assert attributes["langgraph_shadow.run_id"] == str(run_id)
    assert attributes["langgraph_shadow.predicted"] == 64
    assert attributes["langgraph_shadow.shadow_of_run"] == str(seen.run_id)
    assert attributes["langgraph_shadow.shadow_of_tool_calls"] == ("c1", "c2")
    said = str(attributes)
    assert "Glaciers" not in said
    assert user_update().instruction not in said
    assert SECRET not in said


def test_a_failed_branch_is_a_span_with_an_error(spans: Any) -> None:
    traces = Traces()
    ended(traces, seen_in_a_run(traces), verdict="failed", reason="no answer", prompt_tokens=None)
    (span,) = spans.get_finished_spans()
    assert span.status.description == "no answer"
    assert span.links == ()
    assert "gen_ai.usage.input_tokens" not in span.attributes


def test_both_systems_at_once_name_the_same_run(spans: Any, endpoint: LangSmithEndpoint) -> None:
    traces = Traces()
    with tracing_context(enabled=True, client=endpoint.client):
        run_id = str(ended(traces, seen_in_a_run(traces)))
    assert [b["id"] for b in endpoint.branches] == [run_id]
    (span,) = spans.get_finished_spans()
    assert span.attributes["langgraph_shadow.run_id"] == run_id


def test_without_a_provider_there_is_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    for provider in (None, trace.NoOpTracerProvider()):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        assert seen_in_a_run(Traces()).tracers == ()


def test_a_span_that_is_sampled_out_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    traces = Traces()
    assert opened(traces, seen_in_a_run(traces)) is None


class Checked(BaseModel):
    verdict: str


def test_a_branchs_name_is_the_runs_name() -> None:
    names: list[str] = []

    class Named(Kept):
        def open(self, name: str, run_id: UUID, started: int) -> Any:
            names.append(name)
            return super().open(name, run_id, started)

    traces = Traces()
    branch = Branch(name="price_alert", instruction="Is it dear?", skip_word=None, schema=Checked)
    seen = Seen(traces, traces.cause(uuid4(), None, None, {}), (Named(),))
    assert opened(traces, seen, branch) is not None
    assert names == ["shadow:price_alert"]
