"""A conversation keeps its name only while its blocks are what the next prompt begins with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow import Affinity
from langgraph_shadow.alignment.render import Prompt, Rendering
from langgraph_shadow.runner.conversation import Conversations
from langgraph_shadow.runner.errands import Work
from langgraph_shadow.trunk.model import Message, Trunk, TrunkKey
from tests.faults.server import FaultServer
from tests.routers import HashRouter
from tests.unit.test_affinity_requests import branches, by_watch, model, run, shadow_of

AFFINITY = Affinity(header="x-session-id", conversation=True)
KEY = TrunkKey("t")


def text(messages: Sequence[Message], *, strips: bool = False) -> str:
    """A template; one that strips shows an answer's thoughts only while the answer is the last."""
    shown = ""
    for place, message in enumerate(messages):
        content = message["content"]
        if strips and place < len(messages) - 1:
            content = content.partition("</think>")[2] or content
        shown += f"<{message['role']}>{content}"
    return shown


class World:
    """A server whose tokens are characters, and a proxy that keeps what it was left."""

    def __init__(self, *, strips: bool = False, spelled: bool = True) -> None:
        self.strips, self.spelled = strips, spelled
        self.works: list[Work] = []
        self.conversations = Conversations(AFFINITY, errand=self.works.append, max_lines=8)
        self.handles: dict[str, str] = {}
        self.renderer = self
        self.wrong: list[str] = []

    async def render(self, prompt: Prompt) -> Rendering:
        shown = text(prompt.messages, strips=self.strips)
        return Rendering("tokens", tuple(map(ord, shown)), "t")

    def prove(self) -> None:
        for work in self.works:
            asyncio.run(work(self))  # type: ignore[arg-type]
        self.works.clear()

    def turn(self, messages: Sequence[Message], answer: str, *, fails: bool = False) -> bool:
        """One call; returns whether blocks were given back."""
        run_id = uuid4()
        trunk = Trunk.build(key=KEY, model="m", messages=messages)
        name = self.conversations.begin(run_id, trunk)
        prompt = text(messages, strips=self.strips) + "<assistant>"
        held = self.handles.pop(name, None)
        if held is not None and not prompt.startswith(held):
            self.wrong.append(prompt)
        tokens = list(map(ord, answer))
        self.conversations.said(run_id, {"prompt_token_ids": list(map(ord, prompt))})
        said = tokens if self.spelled else tokens[:-1]
        for token in said:
            self.conversations.said(run_id, {"choices": [{"token_ids": [token]}]})
        self.handles[name] = (prompt + answer)[:-1]
        if fails:
            self.conversations.ended(run_id, None)
        else:
            self.conversations.ended(run_id, {"role": "assistant", "content": answer})
        return held is not None


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def said(content: str) -> Message:
    return {"role": "assistant", "content": content}


def test_a_turn_that_extends_the_last_one_keeps_its_name() -> None:
    world = World()
    assert not world.turn([user("a")], "one")
    world.prove()
    assert world.turn([user("a"), said("one"), user("b")], "two")
    assert not world.conversations.renamed


def test_what_is_not_proved_in_time_is_a_miss() -> None:
    world = World()
    world.turn([user("a")], "one")
    assert not world.turn([user("a"), said("one"), user("b")], "two")
    assert list(world.conversations.renamed) == ["its tokens were not proved to begin the prompt"]


def test_an_edited_history_gets_another_name() -> None:
    world = World()
    world.turn([user("a")], "one")
    world.prove()
    assert not world.turn([user("A"), said("one"), user("b")], "two")
    world.prove()
    assert not world.turn([user("A"), said("one, edited"), user("b")], "three")
    assert world.conversations.renamed["the prompt does not extend the turn before"] == 2


def test_a_call_made_anew_gets_another_name() -> None:
    world = World()
    world.turn([user("a")], "one")
    world.prove()
    assert not world.turn([user("a")], "one again")


def test_thoughts_that_the_template_strips_later_are_seen() -> None:
    world = World(strips=True)
    answer = "<think>hm</think>one"
    world.turn([user("a")], answer)
    world.prove()
    assert not world.turn([user("a"), said(answer), user("b")], "two")
    assert not world.wrong


def test_a_failed_turn_leaves_nothing_to_give_back() -> None:
    world = World()
    world.turn([user("a")], "one", fails=True)
    world.prove()
    assert not world.turn([user("a"), said("one"), user("b")], "two")


def test_two_calls_at_once_do_not_share_a_name() -> None:
    conversations = Conversations(AFFINITY, errand=lambda _: None, max_lines=8)
    trunk = Trunk.build(key=KEY, model="m", messages=[user("a")])
    assert len({conversations.begin(uuid4(), trunk) for _ in range(3)}) == 3


def test_agents_and_processes_have_names_of_their_own() -> None:
    trunks = [
        Trunk.build(key=TrunkKey("t", namespace, node), model="m", messages=[user("a")])
        for namespace in ("", "child:1")
        for node in ("agent", "writer")
    ]
    one = Conversations(AFFINITY, errand=lambda _: None, max_lines=8)
    other = Conversations(AFFINITY, errand=lambda _: None, max_lines=8)
    names = {c.begin(uuid4(), trunk) for c in (one, other) for trunk in trunks}
    assert len(names) == 8


def test_a_line_that_was_forgotten_never_gets_its_old_name() -> None:
    conversations = Conversations(AFFINITY, errand=lambda _: None, max_lines=1)
    trunks = [
        Trunk.build(key=TrunkKey(thread), model="m", messages=[user("a")]) for thread in "tut"
    ]
    assert len({conversations.begin(uuid4(), trunk) for trunk in trunks}) == 3


Step = tuple[str, str, bool, bool]
steps = st.tuples(
    st.sampled_from(["more", "edit", "again", "drop"]),
    st.sampled_from(["one", "<think>hm</think>two", "three"]),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(steps, max_size=8), st.booleans(), st.booleans())
def test_blocks_never_go_to_a_prompt_that_does_not_begin_with_them(
    taken: list[Step], strips: bool, spelled: bool
) -> None:
    world = World(strips=strips, spelled=spelled)
    messages: list[Message] = [user("a")]
    for kind, answer, proves, fails in taken:
        world.turn(messages, answer, fails=fails)
        if proves:
            world.prove()
        if kind == "edit":
            messages = [user("edited"), *messages[1:]]
        if kind == "drop":
            messages = messages[-1:]
        if kind != "again":
            messages = [*messages, said(answer), user(f"then {len(messages)}")]
    assert not world.wrong


@pytest.fixture
def router() -> Iterator[HashRouter]:
    with FaultServer() as one, HashRouter([one.port]) as running:
        yield running


async def test_the_orchestrator_carries_it_and_a_branch_never_does(router: HashRouter) -> None:
    llm = model(router)
    shadow: Any = shadow_of(llm, affinity=AFFINITY, guard="reject", prefill_ahead=True)
    await run(by_watch(llm, shadow), "t")
    assert await shadow.drain(timeout=60)
    orchestrator, ours = branches(router)
    names = {r.body["conversation_id"] for r in orchestrator}
    assert len(names) == len(orchestrator)  # this server says no token ids, so nothing is proved
    assert all(r.body["return_token_ids"] is True for r in orchestrator)
    assert ours
    assert all("conversation_id" not in str(r.body) for r in ours)
    assert shadow.ledger.guard == ()
    assert all(row.predicted == row.cached for row in shadow.ledger)
