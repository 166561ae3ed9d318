"""A specialist as a chat model: it is sent the trunk, and puts its role behind it by itself.

LangChain's callbacks see the trunk, so the shadow captures, guards and routes it like any other
call, and fires its branches after a specialist's tool batches too.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import ConfigDict

from langgraph_shadow.specialists.errors import SpecialistError, ToolNotAllowedError
from langgraph_shadow.specialists.hop import Hop, Reply, run_hop
from langgraph_shadow.specialists.team import Captured, Team
from langgraph_shadow.trunk.model import Trunk
from langgraph_shadow.trunk.wire import wire_sampling

if TYPE_CHECKING:
    from langchain_core.language_models.base import LangSmithParams

    from langgraph_shadow.runner.server import Server
    from langgraph_shadow.runner.streaming import Answer

_log = logging.getLogger("langgraph_shadow.specialists")

_NOT_CAPTURED = "its prompt could not be captured"
_CHAT_ONLY = "Build the shadow's model with ChatOpenAI(use_responses_api=False)."
_APART = (
    "specialist %r: the orchestrator of this thread sends another system prompt, other tools or "
    "other request fields in front, so its blocks are not found; send the same head from both: "
    "head = declare(shadow, system=…, tools=[…]), and in the orchestrator "
    "[SystemMessage(head.system), *messages] with bind_tools(head.tools)"
)
_CALL_ID_CHARACTERS = 9
"""Mistral's templates take call ids of nine alphanumeric characters only."""


class RoleModel(BaseChatModel):
    """The served model in one role, for one request.

    Attributes:
        team: What the specialists of a shadow share.
        hop: The request.
        streaming: Always: the first token starts the branches that follow it.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    team: Team
    hop: Hop
    streaming: bool = True

    @property
    def _llm_type(self) -> str:
        return "langgraph-shadow-specialist"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"specialist": self.hop.specialist, "role": self.hop.role}

    def _get_invocation_params(
        self, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The served model's own, so that what is captured is what is sent."""
        tools = self.team.tools()
        declared = {"tools": list(tools), "tool_choice": "none"} if tools else {}
        params = self.team.llm._get_invocation_params(stop=stop, **declared)
        return {**params, **self._identifying_params, "stream": True}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return self.team.llm._get_ls_params(stop=stop)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        """Run the request on the shadow's own loop thread, and wait for it here."""
        arrived: queue.SimpleQueue[str | Reply | BaseException] = queue.SimpleQueue()
        host = self.team.hosts.own()
        captured = self._captured()
        given_up = threading.Event()

        def tell(text: str) -> None:
            if given_up.is_set():  # nobody waits any more: end the request
                raise asyncio.CancelledError
            arrived.put(text)

        async def work() -> None:
            try:
                async with self.team.server(host) as server:
                    arrived.put(await self._ask(server, captured, messages, tell))
            except BaseException as error:  # it is raised where somebody waits for it
                arrived.put(error)

        if not host.spawn(work):
            arrived.put(RuntimeError("the shadow's loop thread has ended"))
        try:
            while not isinstance(item := arrived.get(), Reply):
                if isinstance(item, BaseException):
                    raise item
                yield _chunk(item)
            yield from self._last(item)
        finally:
            given_up.set()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        arrived: asyncio.Queue[str | None] = asyncio.Queue()
        captured = self._captured()

        async def work() -> Reply:
            try:
                async with self.team.server(self.team.hosts.current()) as server:
                    return await self._ask(server, captured, messages, arrived.put_nowait)
            finally:
                arrived.put_nowait(None)

        task = asyncio.ensure_future(work())
        try:
            while (text := await arrived.get()) is not None:
                yield _chunk(text)
            for chunk in self._last(await task):
                yield chunk
        finally:
            task.cancel()

    def _ask(
        self,
        server: Server,
        captured: Captured,
        messages: Sequence[BaseMessage],
        on_text: Callable[[str], None],
    ) -> Coroutine[Any, Any, Reply]:
        hop = self.hop
        return run_hop(
            self.team,
            hop,
            captured,
            server,
            sampling=wire_sampling(self.team.llm, messages, hop.own if hop.calls != "none" else ()),
            generated=[_generated(message) for message in messages],
            on_text=on_text,
        )

    def _captured(self) -> Captured:
        captured = self.team.captured(self.hop.run_id)
        if captured is None:
            raise SpecialistError(self.hop.specialist, _NOT_CAPTURED, remedy=_CHAT_ONLY)
        if captured.before is not None and _other_head(captured.before, captured.trunk):
            self.team.once.warn(
                _log, f"apart-{captured.before.key.node}", _APART, self.hop.specialist
            )
        return captured

    def _last(self, reply: Reply) -> Iterator[ChatGenerationChunk]:
        """The end of the answer: what was held back, the tool call, and the usage."""
        answer, call = reply.answer, reply.call
        asked = []
        if call is not None:
            own = tuple(str(tool["function"]["name"]) for tool in self.hop.own)
            if not call.name:
                problem = f"its tool call was cut off or garbled ({answer.finish_reason})"
                remedy = "Raise max_tokens."
                raise SpecialistError(self.hop.specialist, problem, remedy=remedy)
            if call.name not in own or self.hop.calls == "none":
                raise ToolNotAllowedError(self.hop.specialist, call.name, own=own)
            call_id = uuid4().hex[:_CALL_ID_CHARACTERS]
            asked = [tool_call_chunk(name=call.name, args=call.written, id=call_id, index=0)]
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content=reply.rest,
                tool_call_chunks=asked,
                usage_metadata=_usage(answer),
                response_metadata={
                    "model_name": self.team.llm.model_name,
                    "finish_reason": "tool_calls" if asked else answer.finish_reason or "stop",
                },
                chunk_position="last",
            )
        )


def _other_head(before: Trunk, trunk: Trunk) -> bool:
    """Whether the same conversation was sent with something else in front of it."""
    said, says = ([m for m in t.messages if m["role"] != "system"] for t in (before, trunk))
    return not trunk.extends(before) and says[: len(said)] == said


def _chunk(text: str) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=text))


def _generated(message: BaseMessage) -> int | None:
    """Tokens that a model generated for a message, where it says so."""
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    return usage["output_tokens"] if usage else None


def _usage(answer: Answer) -> UsageMetadata | None:
    if answer.prompt_tokens is None:
        return None
    generated = answer.generated or 0
    return UsageMetadata(
        input_tokens=answer.prompt_tokens,
        output_tokens=generated,
        total_tokens=answer.prompt_tokens + generated,
        input_token_details=InputTokenDetails(cache_read=answer.cached or 0),
    )
