"""The budget in whole runs: what is delayed, what is shed, and how it shows."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_shadow import Shadow, ShadowEvent
from langgraph_shadow.delivery.ledger import Ledger, LedgerRow
from langgraph_shadow.runner import batch
from langgraph_shadow.runner.load import Load
from tests.agents import TOOLS
from tests.faults import harness, scripts
from tests.faults.harness import BATCHES, BRANCH, MODES, Mode, accounted, async_agent, model
from tests.faults.server import (
    SENTENCE,
    FaultServer,
    Reply,
    Script,
    chunk,
    metrics_page,
    serve_chat,
)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


_news = threading.Condition()


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new row is news."""
    add = Ledger.add

    def spy(ledger: Ledger, row: LedgerRow) -> None:
        add(ledger, row)
        with _news:
            _news.notify_all()

    monkeypatch.setattr(Ledger, "add", spy)


def in_turn(shadow: Shadow) -> harness.Hook:
    """The second tool waits for the first batch's row: this agent is faster than any server."""

    def hook(call: int) -> None:
        with _news:
            assert _news.wait_for(lambda: len(shadow.ledger) >= call, 20)

    return hook


def run(mode: Mode, server: FaultServer, shadow: Shadow) -> harness.Outcome:
    return harness.run(mode, server, shadow, in_turn(shadow))


def shadow_on(server: FaultServer, **options: Any) -> Shadow:
    limits = {"timeout": 30.0, "late": "deliver", "branches": [BRANCH], **options}
    return Shadow(model(server), **limits)


def always_read(shadow: Shadow) -> None:
    """Read `/metrics` for every decision, so that no test waits for a second to pass."""
    shadow._runner._budget._load = Load(max_age=0)


def waiting(*requests: int) -> Script:
    """A `/metrics` page that shows these queue lengths one after the other, then the last."""
    left = itertools.chain(requests, itertools.repeat(requests[-1]))

    async def script(reply: Reply) -> None:
        gauge = f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting {next(left)}\n"
        await reply.raw(metrics_page(16) + gauge.encode(), kind="text/plain")

    return script


def summary(shadow: Shadow) -> list[tuple[str, str]]:
    return [(row.verdict, row.launch) for row in shadow.ledger]


class TestUnderPressure:
    @pytest.mark.parametrize("mode", MODES)
    def test_it_is_shed_where_everyone_can_see_it(
        self, server: FaultServer, mode: Mode, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.metrics = waiting(9)
        sent: list[Any] = []
        server.branch = recorded(sent, serve_chat)
        events: list[ShadowEvent] = []
        shadow = shadow_on(server, max_queue=8, on_event=events.append)
        with caplog.at_level(logging.WARNING):
            run(mode, server, shadow)
        shadow._post.join(10)

        accounted(shadow, fired=BATCHES)
        assert sent == []
        reason = "9 requests were waiting at the server; the limit is 8"
        assert [(r.verdict, r.reason) for r in shadow.ledger] == [("shed", reason)] * BATCHES
        assert [(e.type, e.reason) for e in events] == [("shadow.shed", reason)] * BATCHES
        assert [r.getMessage() for r in caplog.records] == [
            f"branches are shed (max_queue): {reason}; the ledger counts them"
        ]

    def test_follow_becomes_gap_before_anything_is_shed(self, server: FaultServer) -> None:
        #                 found out, first batch: at launch and in the gap, second batch
        server.metrics = waiting(0, 9, 0, 0)
        shadow = shadow_on(server, max_queue=8)
        always_read(shadow)
        run("async", server, shadow)
        assert summary(shadow) == [("update", "gap"), ("update", "follow")]

    def test_one_that_waits_for_the_gap_anyway_is_shed_there(self, server: FaultServer) -> None:
        server.metrics = waiting(0, 9, 0)
        shadow = shadow_on(server, max_queue=8, launch="gap")
        always_read(shadow)
        run("async", server, shadow)
        assert sorted(summary(shadow)) == [("shed", "gap"), ("update", "gap")]

    def test_tokens_are_counted_and_the_next_batch_is_shed(self, server: FaultServer) -> None:
        shadow = shadow_on(server, max_tokens_per_minute=1)
        run("async", server, shadow)
        first, second = shadow.ledger
        assert first.verdict == "update"
        computed = first.prompt_tokens - first.cached + first.generated  # type: ignore[operator]
        assert second.reason == (
            f"branches computed {computed} tokens in the last minute; the limit is 1"
        )


class TestBreaker:
    def test_a_failing_server_is_left_alone(self, server: FaultServer) -> None:
        sent: list[Any] = []
        server.branch = recorded(sent, scripts.status(500))
        shadow = shadow_on(server, max_failures=1, cool_down=300)
        run("async", server, shadow)
        first, second = shadow.ledger
        assert first.verdict == "failed"
        assert (second.verdict, len(sent)) == ("shed", 1)
        assert second.reason.startswith("the server failed 1 times in a row; no branch is sent for")

    def test_a_probe_brings_the_branches_back(self, server: FaultServer) -> None:
        server.branch = after(1, scripts.status(503), serve_chat)
        shadow = shadow_on(server, max_failures=1, cool_down=1e-9)
        run("async", server, shadow)
        assert [row.verdict for row in shadow.ledger] == ["failed", "update"]

    @pytest.mark.parametrize("code", [400, 413, 422])
    def test_what_one_prompt_is_to_blame_for_does_not_count(
        self, server: FaultServer, code: int
    ) -> None:
        server.branch = scripts.status(code, "too long")
        shadow = shadow_on(server, max_failures=1, cool_down=300)
        run("async", server, shadow)
        assert [row.verdict for row in shadow.ledger] == ["failed", "failed"]

    def test_a_prompt_that_cannot_be_aligned_does_not_count(self, server: FaultServer) -> None:
        server.tokenize = scripts.status(400, "no")
        shadow = shadow_on(server, max_failures=1, cool_down=300)
        run("async", server, shadow)
        assert [row.verdict for row in shadow.ledger] == ["failed", "failed"]


class TestPriority:
    def test_branches_are_later_than_the_orchestrator(self, server: FaultServer) -> None:
        seen: list[Any] = []
        server.branch = recorded(seen, serve_chat)
        run("async", server, shadow_on(server))
        run("async", server, shadow_on(server, priority=3))
        run("async", server, shadow_on(server, priority=None))
        assert seen == [10, 10, 3, 3, None, None]

    def test_the_orchestrators_own_priority_still_comes_first(self, server: FaultServer) -> None:
        seen: list[Any] = []
        server.branch = recorded(seen, serve_chat)
        shadow = shadow_on(server)

        async def main() -> None:
            async with httpx2.AsyncClient() as client:
                llm = model(server, http_async_client=client, extra_body={"priority": 7})
                graph = shadow.attach(ends_after_tools(llm, shadow.tool_node(ToolNode(TOOLS))))
                await graph.ainvoke({"messages": [HumanMessage("How do glaciers fare?")]})
            await rows(shadow)

        asyncio.run(main())
        assert seen == [17]

    @pytest.mark.parametrize("code", [400, 422])
    def test_a_server_that_refuses_it_is_asked_once_more_and_remembered(
        self, server: FaultServer, code: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        seen: list[Any] = []
        refused = scripts.status(code, "Got priority 10 but priority scheduling is not enabled")

        async def strict(reply: Reply) -> None:
            await (refused if reply.body.get("priority") else serve_chat)(reply)

        server.branch = recorded(seen, strict)
        shadow = shadow_on(server)
        with caplog.at_level(logging.WARNING):
            run("async", server, shadow)
        assert seen == [10, None, None]
        assert [row.verdict for row in shadow.ledger] == ["update", "update"]
        assert len(caplog.records) == 1

    def test_another_refusal_is_not_taken_for_one(self, server: FaultServer) -> None:
        seen: list[Any] = []
        server.branch = recorded(seen, scripts.status(400, "maximum context length exceeded"))
        run("async", server, shadow_on(server))
        assert seen == [10, 10]


class TestTheAnswerCameFirst:
    @pytest.fixture(autouse=True)
    def no_grace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batch, "GRACE_S", 0.0)

    def test_the_request_is_aborted(self, server: FaultServer) -> None:
        gone, left = threading.Event(), threading.Event()

        async def answers_late(reply: Reply) -> None:
            if sum(m["role"] == "tool" for m in reply.body["messages"]) < BATCHES:
                await serve_chat(reply)
                return
            await reply.start()
            await reply.event(chunk(content="Glaciers "))  # lets the branch go
            await reply.wait_for(left)
            await reply.event(chunk(content="shrink."))
            await reply.event(chunk(finish="stop"))
            await reply.event("[DONE]")
            await reply.end()

        async def slow(reply: Reply) -> None:
            left.set()
            try:
                await scripts.stalled(reply)  # ends, or breaks, when the client closes the stream
            finally:
                gone.set()

        server.orchestrator, server.branch = answers_late, after(1, serve_chat, slow)
        shadow = shadow_on(server, late="cancel")
        first, second = asyncio.run(run_and_wait(server, shadow))
        assert first.verdict == "update"
        assert (second.verdict, second.reason) == ("shed", "the answer came first")
        assert gone.wait(10)

    def test_in_the_gap_it_is_not_even_sent(self, server: FaultServer) -> None:
        sent: list[Any] = []
        server.branch = recorded(sent, serve_chat)
        shadow = shadow_on(server, late="cancel", launch="gap")
        first, second = asyncio.run(run_and_wait(server, shadow))
        assert first.verdict == "update"
        assert (second.verdict, second.reason) == ("shed", "the answer came first")
        assert len(sent) == 1

    def test_a_loop_that_goes_on_after_text_is_not_held(self, server: FaultServer) -> None:
        """Some graphs make the tool calls themselves, so every answer looks final."""
        heard = threading.Event()
        shadow = shadow_on(
            server, late="cancel", launch="gap", deadline=300.0, on_event=lambda _: heard.set()
        )

        @tool("search")
        async def search(topic: str) -> str:
            """Search the archive."""
            if topic == "ice 2":  # by now the verdict on the first batch must have come
                assert await asyncio.to_thread(heard.wait, 20)
            return topic

        async def main() -> bool:
            async with httpx2.AsyncClient() as client:
                llm = model(server, http_async_client=client)
                await shadow.attach(calls_by_itself(llm, search, 3)).ainvoke({"messages": []})
            return await shadow.drain(timeout=20)

        assert asyncio.run(main())
        assert [row.verdict for row in shadow.ledger] == ["update"] * 3

    def test_one_that_is_wanted_is_delivered(self, server: FaultServer) -> None:
        server.branch = after(1, serve_chat, slowly)
        shadow = shadow_on(server, late="deliver")
        first, second = asyncio.run(run_and_wait(server, shadow))
        assert (first.late, second.verdict, second.late) == (False, "update", True)

    def test_draining_delivers_what_the_answer_overtook(
        self, server: FaultServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batch, "GRACE_S", 30.0)
        server.branch = after(1, serve_chat, slowly)
        shadow = shadow_on(server, late="cancel")

        async def main() -> bool:
            async with async_agent(server, shadow, in_turn(shadow)) as agent:
                await agent.arun()
            drained = asyncio.ensure_future(shadow.drain(timeout=20))
            await asyncio.sleep(0)
            server.go.set()
            return await drained

        assert asyncio.run(main())
        assert [(row.verdict, row.late) for row in shadow.ledger] == [
            ("update", False),
            ("update", True),
        ]

    @pytest.mark.parametrize("launch", ["follow", "gap", "lead"])
    def test_a_loop_that_ends_after_its_tools_has_no_answer(
        self, server: FaultServer, launch: str
    ) -> None:
        server.branch = slowly
        shadow = shadow_on(server, late="cancel", launch=launch)

        async def main() -> list[LedgerRow]:
            async with httpx2.AsyncClient() as client:
                llm = model(server, http_async_client=client)
                graph = shadow.attach(ends_after_tools(llm, shadow.tool_node(ToolNode(TOOLS))))
                await graph.ainvoke({"messages": [HumanMessage("How do glaciers fare?")]})
            server.go.set()
            return await rows(shadow)

        [row] = asyncio.run(main())
        assert (row.verdict, row.text, row.late) == ("update", SENTENCE, True)


async def run_and_wait(server: FaultServer, shadow: Shadow) -> list[LedgerRow]:
    """Run without draining, let the server go on, and wait until every branch has its row."""
    async with async_agent(server, shadow, in_turn(shadow)) as agent:
        await agent.arun()
    server.go.set()
    return await rows(shadow)


async def rows(shadow: Shadow) -> list[LedgerRow]:
    """Wait as nobody outside would, since `drain` changes what becomes of a branch."""
    active = [asyncio.wrap_future(f) for f in shadow._runner._underway.futures()]
    if active:
        await asyncio.wait(active, timeout=20)
    return list(shadow.ledger.rows)


def ends_after_tools(llm: Any, tools: ToolNode) -> Any:
    async def agent(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [await llm.bind_tools(TOOLS).ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "tools")
    builder.add_edge("tools", END)
    return builder.compile()


def calls_by_itself(llm: Any, search: BaseTool, batches: int) -> Any:
    """The model only ever writes text, of which the graph makes tool calls."""

    async def agent(state: MessagesState) -> dict[str, list[Any]]:
        turn = len(state["messages"]) // 2
        asked = [HumanMessage("How do glaciers fare?"), *state["messages"]]
        answer = await llm.bind_tools([search], tool_choice="none").ainvoke(asked)
        call = {"name": "search", "args": {"topic": f"ice {turn}"}, "id": f"own-{turn}"}
        calls = [call] if turn < batches else []
        return {"messages": [AIMessage(answer.content, tool_calls=calls)]}

    def route(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([search], handle_tool_errors=False))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile()


def after(count: int, first: Script, then: Script) -> Script:
    """`first` for so many requests, then the other."""
    numbers = itertools.count()

    async def script(reply: Reply) -> None:
        await (first if next(numbers) < count else then)(reply)

    return script


def recorded(seen: list[Any], inner: Script) -> Script:
    """Record each request's priority."""

    async def script(reply: Reply) -> None:
        seen.append(reply.body.get("priority"))
        await inner(reply)

    return script


async def slowly(reply: Reply) -> None:
    """The usual answer, once the test lets it go."""
    await reply.wait_for(reply.server.go)
    await serve_chat(reply)
