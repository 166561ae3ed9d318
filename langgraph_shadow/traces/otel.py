"""OpenTelemetry spans of model calls, as the requests that they describe."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_shadow.adapters.runs import graph_namespace
from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.traces.langsmith import prompt_of, usage_of
from langgraph_shadow.traces.messages import UnknownPromptError, decoded, genai_messages
from langgraph_shadow.traces.reader import TracedRequest, UnknownRequest, seconds
from langgraph_shadow.traces.records import Record
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey
from langgraph_shadow.trunk.wire import WireRequest, wire_request

_EXPECTED = "an OpenTelemetry span, as a JSON object with `attributes`, or `resourceSpans`"
_MODEL_CALLS = ("chat", "generate_content", "text_completion")
_THREADS = (
    "langsmith.metadata.thread_id",
    "gen_ai.conversation.id",
    "langgraph.thread_id",
    "session.id",
)


def otel_requests(path: str, records: list[Record]) -> list[TracedRequest | UnknownRequest]:
    """The model calls among the spans of a file.

    Reads OTLP's JSON (`resourceSpans`, as the collector's file exporter writes it) and spans as
    the SDKs print them. Messages come from `gen_ai.input.messages` or LangSmith's `gen_ai.prompt`.

    Raises:
        TraceFormatError: A record is no span.
    """
    spans = [_Span.of(span, r.line) for r in records for span in _spans(path, r)]
    by_id = {span.id: span for span in spans}
    found: list[TracedRequest | UnknownRequest] = []
    for span in spans:
        if not _is_the_agents(span, by_id):
            continue
        key, index, when = _key(span), len(found), _start(path, span)
        try:
            messages, request = _prompt(span.attributes)
        except UnknownPromptError as error:
            found.append(UnknownRequest(index, span.line, key, str(error), when))
            continue
        trunk = Trunk.build(
            key=key,
            model=request.model,
            messages=messages,
            tools=request.tools,
            fields=request.fields,
        )
        found.append(TracedRequest(index, span.line, trunk, when, _usage(span.attributes)))
    return found


@dataclass(frozen=True, slots=True)
class _Span:
    line: int
    id: str
    parent: str
    trace: str
    raw: Mapping[str, Any]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, raw: Mapping[str, Any], line: int) -> _Span:
        context = raw.get("context")
        held = {**context, **raw} if isinstance(context, dict) else raw
        return cls(
            line=line,
            id=str(held.get("spanId") or held.get("span_id") or ""),
            parent=str(held.get("parentSpanId") or held.get("parent_id") or ""),
            trace=str(held.get("traceId") or held.get("trace_id") or ""),
            raw=raw,
            attributes=_attributes(raw),
        )

    @property
    def namespace(self) -> str:
        return str(self.attributes.get("langsmith.metadata.langgraph_checkpoint_ns") or "")

    @property
    def is_tool(self) -> bool:
        return (
            self.attributes.get("langsmith.span.kind") == "tool"
            or self.attributes.get("gen_ai.operation.name") == "execute_tool"
        )

    @property
    def is_model_call(self) -> bool:
        kind = self.attributes.get("langsmith.span.kind")
        operation = self.attributes.get("gen_ai.operation.name")
        if kind is not None:
            return bool(kind == "llm")
        if operation is not None:
            return operation in _MODEL_CALLS
        return "gen_ai.input.messages" in self.attributes or "gen_ai.prompt" in self.attributes


def _spans(path: str, record: Record) -> Iterator[Mapping[str, Any]]:
    value = record.value
    try:
        if "resourceSpans" not in value:
            value["attributes"]  # every span has them
            yield value
            return
        for resource in value["resourceSpans"]:
            for scope in resource.get("scopeSpans") or ():
                yield from scope.get("spans") or ()
    except (KeyError, TypeError, AttributeError) as error:
        found = f"something else ({type(error).__name__}: {error})"
        raise TraceFormatError(path, record.line, found=found, expected=_EXPECTED) from error


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """The span's attributes; the convention also allows its content to be on an event."""
    found = _plain(span.get("attributes"))
    for event in span.get("events") or ():
        if isinstance(event, dict):
            found = {**_plain(event.get("attributes")), **found}
    return found


def _plain(attributes: object) -> dict[str, Any]:
    """Attributes as a mapping, from one or from OTLP's list of typed pairs."""
    if isinstance(attributes, dict):
        return attributes
    pairs = attributes if isinstance(attributes, list) else []
    return {str(p.get("key")): _value(p.get("value")) for p in pairs if isinstance(p, dict)}


def _value(typed: object) -> Any:
    if not isinstance(typed, dict) or not typed:
        return None
    (kind, value), *_ = typed.items()
    if kind == "intValue":
        return int(value)
    if kind == "arrayValue":
        return [_value(v) for v in value.get("values") or ()]
    if kind == "kvlistValue":
        return {v["key"]: _value(v.get("value")) for v in value.get("values") or ()}
    return value


def _is_the_agents(span: _Span, by_id: Mapping[str, _Span]) -> bool:
    """Whether a span is an agent's own model call: not a middleware's, a tool's or a branch's."""
    names = span.attributes
    if not span.is_model_call or "langsmith.metadata.lc_source" in names:
        return False
    if any(name.endswith("shadow_of_run") for name in names):
        return False
    above = by_id.get(span.parent)
    for _ in by_id:
        if above is None:
            break
        if above.is_tool:
            return above.namespace != span.namespace
        above = by_id.get(above.parent)
    return True


def _key(span: _Span) -> TrunkKey:
    named = span.attributes
    thread = next((named[n] for n in _THREADS if named.get(n)), span.trace)
    node = named.get("langsmith.metadata.langgraph_node") or named.get("gen_ai.agent.name")
    return TrunkKey(str(thread), graph_namespace(span.namespace), str(node or ""))


def _start(path: str, span: _Span) -> float | None:
    for name in ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime"):
        value = span.raw.get(name)
        if value is None:
            continue
        try:
            if isinstance(value, str) and not value.isdigit():
                return float(seconds(value))  # type: ignore[arg-type]
            return int(value) / 1e9
        except (ValueError, TypeError) as error:
            found, expected = f"{name} {value!r}", "nanoseconds since 1970 or an ISO 8601 time"
            raise TraceFormatError(path, span.line, found=found, expected=expected) from error
    return None


def _prompt(attributes: Mapping[str, Any]) -> tuple[tuple[Message, ...], WireRequest]:
    body = decoded(attributes.get("gen_ai.request.extra_body"))
    params: dict[str, Any] = {
        **(body if isinstance(body, dict) else {}),
        "model": attributes.get("gen_ai.request.model"),
        "tools": _tools(attributes.get("gen_ai.tool.definitions")),
    }
    recorded = decoded(attributes.get("gen_ai.input.messages"))
    if recorded is None and attributes.get("gen_ai.prompt") is not None:
        return prompt_of(attributes["gen_ai.prompt"], params)
    instructions = decoded(attributes.get("gen_ai.system_instructions"))
    return genai_messages(recorded, instructions), wire_request(params)


def _tools(value: object) -> list[Any]:
    """Tool definitions: a list, JSON of one, or a list of JSON texts."""
    held = decoded(value)
    return [decoded(tool) for tool in held] if isinstance(held, list) else []


def _usage(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    recorded = usage_of(attributes.get("gen_ai.completion"))
    if recorded is not None:
        return recorded
    prompt = attributes.get("gen_ai.usage.input_tokens")
    cached = attributes.get("gen_ai.usage.cache_read.input_tokens")
    details = attributes.get("gen_ai.usage.input_token_details")
    if cached is None and isinstance(details, str):
        # LangSmith writes the mapping as Python prints it.
        try:
            details = ast.literal_eval(details)
        except (ValueError, SyntaxError):
            details = None
    if cached is None and isinstance(details, dict):
        cached = details.get("cache_read")
    if prompt is None and cached is None:
        return None
    return {"input_tokens": prompt, "input_token_details": {"cache_read": cached}}
