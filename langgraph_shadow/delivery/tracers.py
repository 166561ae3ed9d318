"""The tracing systems that a user may have switched on: LangSmith and OpenTelemetry.

A tracer is captured in the graph's context and used later outside of it, so it holds everything
that says where a run goes, and nothing that holds runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from langchain_core.runnables.config import ensure_config

if TYPE_CHECKING:
    from langchain_core.tracers.langchain import LangChainTracer
    from langsmith import Client
    from opentelemetry.trace import Span, SpanContext

TAG = "shadow"
"""Tag of every branch's run in LangSmith."""

_PREFIX = "langgraph_shadow."


@dataclass(frozen=True, slots=True)
class Account:
    """What is told of one branch that has ended.

    Attributes:
        ended: When, in nanoseconds since 1970.
        model: The served model that was asked.
        inputs: What was asked, with references to the trunk instead of the trunk.
        outputs: What a person got, or why nothing.
        error: Why it failed; None otherwise.
        metadata: The links and the ledger's numbers; nothing that a prompt or an answer says.
        prompt_tokens: Tokens of the prompt, cached ones included.
        generated: Tokens generated.
        cached: Prompt tokens from the prefix cache.
    """

    ended: int
    model: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    error: str | None
    metadata: Mapping[str, Any]
    prompt_tokens: int | None
    generated: int | None
    cached: int | None


End = Callable[[Account], None]


class Tracer(Protocol):
    """One tracing system, as it was set up when it was captured."""

    def open(self, name: str, run_id: UUID, started: int) -> End | None:
        """Open a root run; returns what ends it, or None when it is not recorded.

        Called in an event loop; what it returns may block.

        Args:
            name: The run's name.
            run_id: The run's id.
            started: Nanoseconds since 1970.
        """


@dataclass(frozen=True, slots=True)
class LangSmith:
    """A LangSmith project."""

    client: Client
    project: str | None
    address: Any
    replicas: Sequence[Any] | None
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]

    @classmethod
    def capture(cls) -> LangSmith | None:
        """Where LangChain would send a run that began here; None when it would send none."""
        from langsmith import get_tracing_context

        context = get_tracing_context()
        if context["enabled"] in (False, "local"):
            return None
        tracer = langchain_tracer()
        if tracer is None:
            return None
        return cls(
            client=tracer.client,
            project=tracer.project_name,
            address=tracer.address,
            replicas=context["replicas"],
            tags=tuple(tracer.tags),
            # LangSmith's own keys say what the agent is, which a branch is not
            metadata={
                k: v for k, v in (tracer.tracing_metadata or {}).items() if not k.startswith("ls_")
            },
        )

    def open(self, name: str, run_id: UUID, started: int) -> End:
        """Open a run. It is posted once, when it has ended: one request, and never half a run."""

        def end(account: Account) -> None:
            from langsmith.run_trees import RunTree

            usage = _usage(account)
            RunTree(
                id=run_id,
                name=name,
                run_type="llm",
                start_time=_time(started),
                end_time=_time(account.ended),
                inputs=dict(account.inputs),
                outputs=dict(account.outputs),
                error=account.error,
                extra={
                    "metadata": {
                        **self.metadata,
                        **account.metadata,
                        "ls_provider": "vllm",
                        "ls_model_name": account.model,
                        "ls_model_type": "chat",
                        **({"usage_metadata": usage} if usage else {}),
                    }
                },
                tags=[*self.tags, TAG],
                project_name=self.project,
                address=self.address,
                ls_client=self.client,
                replicas=self.replicas,
            ).post()

        return end


@dataclass(frozen=True, slots=True)
class OpenTelemetry:
    """The global tracer provider, and the span that was current."""

    cause: SpanContext

    @classmethod
    def capture(cls) -> OpenTelemetry | None:
        """The current span; None when the user set no provider up.

        Whoever set one up has imported the package, so it is never imported here.
        """
        trace = sys.modules.get("opentelemetry.trace")
        if trace is None or isinstance(
            trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider
        ):
            return None
        return cls(trace.get_current_span().get_span_context())

    def open(self, name: str, run_id: UUID, started: int) -> End | None:
        """Open a span: in an empty context, so that it is a root, and linked to its cause."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        span = trace.get_tracer("langgraph_shadow").start_span(
            name,
            context=Context(),
            kind=trace.SpanKind.CLIENT,
            links=[trace.Link(self.cause)] if self.cause.is_valid else [],
            start_time=started,
        )
        if not span.is_recording():
            return None
        span.set_attribute(_PREFIX + "run_id", str(run_id))
        return lambda account: _end_span(span, account)


def langchain_tracer() -> LangChainTracer | None:
    """LangChain's own LangSmith tracer in force here: the running graph's, or the context's."""
    from langchain_core.tracers.context import tracing_v2_callback_var
    from langchain_core.tracers.langchain import LangChainTracer
    from langsmith import get_tracing_context
    from langsmith.utils import tracing_is_enabled

    callbacks = ensure_config().get("callbacks")
    handlers = callbacks if isinstance(callbacks, list) else getattr(callbacks, "handlers", ())
    tracer = next((h for h in handlers if isinstance(h, LangChainTracer)), None)
    if tracer is None:
        tracer = tracing_v2_callback_var.get()
    if tracer is None and tracing_is_enabled() is True:
        context = get_tracing_context()
        above = context["parent"] or _NO_RUN
        tracer = LangChainTracer(
            project_name=context["project_name"] or above.session_name,
            address=context["address"] or above.address,
            client=context["client"] or above.ls_client,
            tags=context["tags"],
            metadata=context["metadata"],
        )
    return tracer


class _NoRun:
    session_name = address = ls_client = None


_NO_RUN = _NoRun()


def _end_span(span: Span, account: Account) -> None:
    """The numbers and the links only: what was asked and answered is not for telemetry."""
    from opentelemetry.trace import Status, StatusCode

    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": account.model,
        "gen_ai.conversation.id": account.metadata.get("thread_id"),
        "gen_ai.usage.input_tokens": account.prompt_tokens,
        "gen_ai.usage.output_tokens": account.generated,
        "gen_ai.usage.cache_read.input_tokens": account.cached,
        **{_PREFIX + key: value for key, value in account.metadata.items()},
    }
    span.set_attributes({k: v for k, v in attributes.items() if v is not None})
    if account.error is not None:
        span.set_status(Status(StatusCode.ERROR, account.error))
    span.end(end_time=account.ended)


def _usage(account: Account) -> dict[str, Any] | None:
    """Token counts in LangChain's form, which LangSmith sums up and shows."""
    if account.prompt_tokens is None:
        return None
    generated = account.generated or 0
    return {
        "input_tokens": account.prompt_tokens,
        "output_tokens": generated,
        "total_tokens": account.prompt_tokens + generated,
        "input_token_details": {} if account.cached is None else {"cache_read": account.cached},
    }


def _time(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
