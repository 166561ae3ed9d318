"""LangSmith run exports: the LLM runs among them, as the requests that they sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from langgraph_shadow.adapters.runs import checkpoint_namespace, graph_namespace
from langgraph_shadow.errors import TraceFormatError
from langgraph_shadow.traces.messages import UnknownPromptError, decoded, langchain_messages
from langgraph_shadow.traces.reader import (
    Name,
    Seconds,
    TracedRequest,
    UnknownRequest,
    first_problem,
)
from langgraph_shadow.traces.records import Record
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey
from langgraph_shadow.trunk.wire import WireRequest, wire_request

_EXPECTED = "a LangSmith run, as a JSON object with `run_type`, `inputs` and `extra`"
_MODEL_RUNS = ("llm", "chat_model")


class _Run(BaseModel):
    """A run; what is not needed is passed over. `inputs` and the like may be JSON text."""

    model_config = ConfigDict(extra="allow")

    run_type: str
    id: Name = ""
    trace_id: Name = ""
    parent_run_id: Name = ""
    name: Name = ""
    start_time: Seconds = None
    error: Name = ""
    inputs: Any = None
    outputs: Any = None
    extra: Any = None
    metadata: Any = None


def langsmith_requests(path: str, records: list[Record]) -> list[TracedRequest | UnknownRequest]:
    """The model calls of a LangSmith export; other runs only tell which call is a tool's own.

    Raises:
        TraceFormatError: A record is no run.
    """
    runs = [(record.line, _run(path, record)) for record in records]
    by_id = {run.id: run for _, run in runs}
    found: list[TracedRequest | UnknownRequest] = []
    for line, run in runs:
        if run.run_type not in _MODEL_RUNS or not _is_the_agents(run, by_id):
            continue
        key, index = _key(run), len(found)
        try:
            found.append(_request(index, line, run, key))
        except UnknownPromptError as error:
            found.append(UnknownRequest(index, line, key, str(error), run.start_time))
    return found


def prompt_of(inputs: object, params: Mapping[str, Any]) -> tuple[tuple[Message, ...], WireRequest]:
    """The wire messages and request fields of a run's inputs.

    Raises:
        UnknownPromptError: They are not in the recording.
    """
    held = decoded(inputs)
    if not isinstance(held, dict):
        held = {}
    # A traced OpenAI client records the whole body as inputs, LangChain only the messages.
    body = {k: v for k, v in held.items() if k != "messages"}
    return langchain_messages(held.get("messages")), wire_request({**params, **body})


def usage_of(outputs: object) -> Mapping[str, Any] | None:
    """The token counts in a run's outputs; the server's own before LangChain's."""
    try:
        held = _mapping(decoded(outputs))
    except UnknownPromptError:
        return None
    generation = held.get("generations")
    while isinstance(generation, list) and generation:
        generation = generation[0]
    message = _mapping(_mapping(_mapping(generation).get("message")).get("kwargs"))
    candidates = (
        _mapping(held.get("llm_output")).get("token_usage"),
        message.get("usage_metadata"),
        held.get("usage_metadata"),
        held.get("usage"),
    )
    return next((c for c in candidates if isinstance(c, dict) and c), None)


def _run(path: str, record: Record) -> _Run:
    try:
        return _Run.model_validate(record.value)
    except ValidationError as error:
        raise TraceFormatError(
            path, record.line, found=first_problem(error), expected=_EXPECTED
        ) from error


def _request(index: int, line: int, run: _Run, key: TrunkKey) -> TracedRequest:
    extra = _extra(run)
    usage = usage_of(run.outputs) or _metadata(run).get("usage_metadata")
    if run.error and usage is None:
        msg = "it failed, so that it may never have been sent"
        raise UnknownPromptError(msg)
    messages, request = prompt_of(run.inputs, _mapping(extra.get("invocation_params")))
    trunk = Trunk.build(
        key=key,
        model=request.model,
        messages=messages,
        tools=request.tools,
        fields=request.fields,
    )
    return TracedRequest(index, line, trunk, run.start_time, usage)


def _is_the_agents(run: _Run, by_id: Mapping[str, _Run]) -> bool:
    """Whether a call continues an agent's history: not a middleware's, a tool's or a branch's."""
    metadata = _metadata(run)
    if metadata.get("lc_source") or metadata.get("shadow_of_run"):
        return False
    # An agent inside a tool has a checkpoint namespace of its own, below the tool's.
    namespace, above = checkpoint_namespace(metadata), by_id.get(run.parent_run_id)
    for _ in by_id:
        if above is None:
            break
        if above.run_type == "tool":
            return checkpoint_namespace(_metadata(above)) != namespace
        above = by_id.get(above.parent_run_id)
    return True


def _key(run: _Run) -> TrunkKey:
    metadata = _metadata(run)
    thread = next(
        (metadata[n] for n in ("thread_id", "session_id", "conversation_id") if metadata.get(n)),
        run.trace_id or run.id,
    )
    return TrunkKey(
        thread=str(thread),
        namespace=graph_namespace(checkpoint_namespace(metadata)),
        node=str(metadata.get("langgraph_node") or ""),
    )


def _extra(run: _Run) -> Mapping[str, Any]:
    try:
        return _mapping(decoded(run.extra))
    except UnknownPromptError:
        return {}


def _metadata(run: _Run) -> Mapping[str, Any]:
    return {**_mapping(run.metadata), **_mapping(_extra(run).get("metadata"))}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
