"""What the adapters saw, turned into batches: each complete tool batch exactly once.

Called in the graph's path, from any thread: no I/O, no waiting, microseconds.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from langgraph_shadow.delivery.sinks import StreamTarget
from langgraph_shadow.hosts import Host
from langgraph_shadow.runner.affinity import Route
from langgraph_shadow.runner.batch import Batch
from langgraph_shadow.runner.lines import Answered, Call, Line, LineKey
from langgraph_shadow.trunk.model import Message, ToolBatch, Trunk
from langgraph_shadow.trunk.wire import wire_messages

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI

_REMEMBERED_BATCHES = 64
_REMEMBERED_ANSWERS = 8


class Intake:
    """Joins model calls and tool results into batches, for every line of every thread."""

    def __init__(self, llm: BaseChatOpenAI, *, max_lines: int) -> None:
        self._llm = llm
        self._lines: OrderedDict[LineKey, Line] = OrderedDict()
        self._calls: OrderedDict[UUID, Call] = OrderedDict()
        self._max_lines = max_lines
        self._lock = threading.RLock()

    def line(self, thread: str, namespace: str) -> Line:
        """The line of a history, made when it is new."""
        with self._lock:
            key = (thread, namespace)
            line = self._lines.setdefault(key, Line())
            self._lines.move_to_end(key)
            while len(self._lines) > self._max_lines:
                self._lines.popitem(last=False)
            return line

    def started(self, call: Call, host: Host, message_ids: Sequence[str | None]) -> Batch | None:
        """A model call is about to be sent; returns the batch that it shows for the first time.

        Args:
            call: The call, with its exact trunk.
            host: Where a new batch's branches will run.
            message_ids: LangChain ids of the trunk's messages, to tell two batches apart.
        """
        with self._lock:
            if call.run_id in self._calls:
                return None
            self._calls[call.run_id] = call
            while len(self._calls) > self._max_lines:
                self._calls.popitem(last=False)
            line = self.line(call.trunk.key.thread, call.trunk.key.namespace)
            call.streams = call.streams or line.streams
            before = line.last_call
            line.last_call, line.known = call, True
            line.goes_on()
            tools = call.trunk.batch
            if tools is None:
                return None
            index = _assistant_index(call.trunk)
            message_id = message_ids[index] if index < len(message_ids) else None
            waiting = next((b for b in line.pending if b.tools.call_ids == tools.call_ids), None)
            if waiting is not None and not waiting.launched:
                call.batch = waiting
                waiting.saw_request(call.trunk, streams=call.streams, target=call.target)
                return None
            if not self._claim(line, tools, index, message_id):
                if waiting is not None:
                    waiting.saw_request(call.trunk, streams=call.streams, target=call.target)
                return None
            batch = _batch(line, call, call.trunk, tools, host)
            batch.sent = before.trunk if before is not None else call.trunk
            batch.saw_request(call.trunk, streams=call.streams, target=call.target)
            call.batch = batch
            line.pending.append(batch)
            return batch

    def token(self, run_id: UUID) -> Call | None:
        """A model call streamed a token; returns the call when it was its first."""
        call = self._calls.get(run_id)
        if call is None or call.first_token_at is not None:
            return None
        call.first_token_at = time.perf_counter()
        self.line(call.trunk.key.thread, call.trunk.key.namespace).streams = True
        if call.batch is not None:
            call.batch.first_token.happen()
        return call

    def ended(self, run_id: UUID, message: BaseMessage | None) -> Call | None:
        """A model call ended, with its answer or (None) with an error."""
        with self._lock:
            call = self._calls.pop(run_id, None)
            if call is None:
                return None
            if call.batch is not None:
                call.batch.first_token.happen()
                call.batch.answered.happen()
                call.batch = None
            calls = getattr(message, "tool_calls", None) or ()
            line = self.line(call.trunk.key.thread, call.trunk.key.namespace)
            if message is not None:
                line.final = not calls
                for batch in line.pending if line.final else ():
                    batch.final = True
                if line.final and call.root is None:  # the run's end will not be seen
                    line.rest(None)
            if message is not None and calls:
                line.answers.append(
                    Answered(
                        call=call,
                        message=wire_messages(self._llm, [message])[0],
                        message_id=message.id,
                        call_ids=tuple(str(c["id"]) for c in calls),
                    )
                )
                del line.answers[:-_REMEMBERED_ANSWERS]
            return call

    def results(
        self,
        thread: str,
        namespace: str,
        results: Mapping[str, Message],
        *,
        assistant: BaseMessage | None,
        host: Host,
        target: StreamTarget | None,
    ) -> Batch | None:
        """Tool results came in; returns the batch when they complete one for the first time.

        Args:
            thread: The thread.
            namespace: The checkpoint namespace of the graph that ran the tools.
            results: Wire messages by tool call id, in any order.
            assistant: The assistant message in the state that the results answer, when the node
                saw it; needed where the graph made that message itself.
            host: Where the batch's branches will run.
            target: The run's `custom` stream.
        """
        with self._lock:
            line = self.line(thread, namespace)
            answered = self._answer_for(line, results, assistant)
            if answered is None:
                return None
            line.goes_on()
            answered.results.update(results)
            if not all(i in answered.results for i in answered.call_ids):
                return None
            line.answers.remove(answered)
            ordered = [answered.results[i] for i in answered.call_ids]
            trunk = answered.call.trunk.extend([answered.message, *ordered])
            tools = trunk.batch
            index = len(answered.call.trunk.messages)
            if tools is None or not self._claim(line, tools, index, answered.message_id):
                return None
            batch = _batch(line, answered.call, trunk, tools, host)
            batch.target = target or batch.target
            line.pending.append(batch)
            return batch

    def ready_ahead(
        self, thread: str, namespace: str, results: Iterable[str]
    ) -> tuple[Trunk, Route] | None:
        """The trunk through the longest finished run of an unfinished batch, in call order.

        Never in completion order: a result whose predecessors are still running is no prefix of
        the orchestrator's next request. Each longer run is returned once.
        """
        with self._lock:
            line = self.line(thread, namespace)
            ids = set(results)
            answered = next((a for a in line.answers if ids & set(a.call_ids)), None)
            if answered is None:
                return None
            run = [
                answered.results[i]
                for i in itertools.takewhile(answered.results.__contains__, answered.call_ids)
            ]
            if len(run) <= answered.ahead:
                return None
            answered.ahead = len(run)
            return answered.call.trunk.extend([answered.message, *run]), answered.call.route

    def knows(self, thread: str, namespace: str) -> bool:
        """Whether any model call of this history was seen."""
        with self._lock:
            line = self._lines.get((thread, namespace))
            return line is not None and line.known

    def finished(self, batch: Batch) -> None:
        """The batch's branches are done: forget its trunk."""
        with self._lock:
            line = self._lines.get((batch.trunk.key.thread, batch.trunk.key.namespace))
            if line is not None and batch in line.pending:
                line.pending.remove(batch)

    def run_over(self, root: UUID, *, failed: bool) -> set[str]:
        """A graph run ended: its batches wait for nothing more; returns its threads."""
        threads = set()
        with self._lock:
            for (thread, _), line in self._lines.items():
                for batch in line.pending:
                    if batch.root == root:
                        batch.run_failed = failed
                        batch.run_over.happen()
                if line.rest(root):
                    threads.add(thread)
            for run_id in [i for i, call in self._calls.items() if call.root == root]:
                del self._calls[run_id]
        return threads

    def pending(self) -> tuple[Batch, ...]:
        """Every batch whose branches have not finished."""
        with self._lock:
            return tuple(b for line in self._lines.values() for b in line.pending)

    def _answer_for(
        self, line: Line, results: Mapping[str, Message], assistant: BaseMessage | None
    ) -> Answered | None:
        for answered in reversed(line.answers):
            if set(results) <= set(answered.call_ids):
                return answered
        calls = getattr(assistant, "tool_calls", None) or ()
        ids = tuple(str(c["id"]) for c in calls)
        if assistant is None or line.last_call is None or not set(results) <= set(ids):
            return None
        answered = Answered(
            call=line.last_call,
            message=wire_messages(self._llm, [assistant])[0],
            message_id=assistant.id,
            call_ids=ids,
        )
        line.answers.append(answered)
        return answered

    def _claim(self, line: Line, tools: ToolBatch, index: int, message_id: str | None) -> bool:
        """Whether this batch was not fired before: retries, resumes and both triggers see it again.

        Some models count their call ids afresh in every turn, so equal ids are the same batch only
        at the same place or in the same assistant message.
        """
        known = line.fired.get(tools.call_ids)
        if known is not None:
            same_message = message_id is not None and message_id == known[1]
            if same_message or index == known[0]:
                return False
        line.count += 1
        line.fired[tools.call_ids] = (index, message_id)
        while len(line.fired) > _REMEMBERED_BATCHES:
            line.fired.popitem(last=False)
        return True


def _batch(line: Line, call: Call, trunk: Trunk, tools: ToolBatch, host: Host) -> Batch:
    answers = (a.call for a in reversed(line.answers) if a.call_ids == tools.call_ids)
    asked = next(answers, call)
    return Batch(
        trunk=trunk,
        sent=call.trunk,
        tools=tools,
        index=line.count,
        host=host,
        origin=call.origin,
        route=call.route,
        root=call.root,
        step=call.step,
        target=call.target,
        streams=call.streams,
        cause=asked.cause,
        tracers=call.tracers,
    )


def _assistant_index(trunk: Trunk) -> int:
    return max(i for i, m in enumerate(trunk.messages) if m["role"] == "assistant")
