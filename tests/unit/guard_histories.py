"""What the guard's tests share: histories, the requests an agent makes of them, a renderer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from langgraph_shadow.alignment.render import Prompt, Rendering
from langgraph_shadow.alignment.render_local import LocalRenderer
from langgraph_shadow.trunk.model import PROMPT_FIELDS, Trunk, TrunkKey

if TYPE_CHECKING:
    from langgraph_shadow.alignment.render import Unit

KEY = TrunkKey(thread="t", node="agent")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tool {name}.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
    for name in ("search", "read", "plot")
]


def trunk(messages: list[dict[str, Any]], *, key: TrunkKey = KEY, **body: Any) -> Trunk:
    return Trunk.build(
        key=key,
        model=body.get("model", "m"),
        messages=messages,
        tools=body.get("tools", TOOLS),
        fields={name: body.get(name) for name in PROMPT_FIELDS},
    )


def system(text: str = "You are a careful agent.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*ids: str, **arguments: Any) -> dict[str, Any]:
    text = json.dumps(arguments or {"query": ids[0], "limit": 5})
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": "search", "arguments": text}}
            for i in ids
        ],
    }


def result(call_id: str, text: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text or f"what {call_id} found"}


def loop(steps: int = 3, *, head: str = "You are a careful agent.") -> list[dict[str, Any]]:
    """One user turn with `steps` tool calls, ready for the next model call."""
    messages = [system(head), user("How fast do glaciers retreat?")]
    for i in range(steps):
        messages += [calls(f"call_{i}"), result(f"call_{i}")]
    return messages


def model_calls(history: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The prompts of the model calls that wrote the history's assistant messages, and the next."""
    ends = [i for i, m in enumerate(history) if m["role"] == "assistant"]
    return [history[:end] for end in (*ends, len(history))]


PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}</>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHATTY = PLAIN.replace(
    "{{ m.content }}", "{{ m.name }}{{ m.tool_call_id }}{{ m.reasoning }}{{ m.content }}"
).replace("{{ c.function.name }}", "{{ c.id }}{{ c.function.name }}")


class Words:
    """The template's text, a number for each of its characters: tokens without a tokenizer."""

    unit: Unit = "tokens"

    def __init__(self, template: str = PLAIN) -> None:
        self._inner = LocalRenderer(template)

    async def render(self, prompt: Prompt) -> Rendering:
        text = (await self._inner.render(prompt)).items
        return Rendering("tokens", tuple(map(ord, str(text))), "test")

    async def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))


_TEXT = st.text(max_size=30)


@st.composite
def histories(draw: st.DrawFn, *, min_turns: int = 1) -> list[dict[str, Any]]:
    """Turns of a user, tool batches of one to three calls, and answers; all messages differ."""
    count = iter(range(10_000))

    def text() -> str:
        return f"{next(count)}: {draw(_TEXT)}"

    messages = [system(draw(_TEXT))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(min_turns, min_turns + 2))):
        messages.append(user(text()))
        for _ in range(draw(st.integers(0, 3))):
            ids = [f"call_{next(count)}" for _ in range(draw(st.integers(1, 3)))]
            message = calls(*ids, query=text())
            if draw(st.booleans()):
                message["reasoning"] = text()
            messages += [message, *(result(i, text()) for i in ids)]
        messages.append(answer(text()))
    messages.append(user(text()))
    return messages
