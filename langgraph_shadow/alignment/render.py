"""Renderers: from a prompt to the tokens (or text) that the server sees."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from langgraph_shadow.alignment.blocks import common_prefix
from langgraph_shadow.errors import AlignmentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langgraph_shadow.trunk.model import Message, Trunk

Items: TypeAlias = "tuple[int, ...] | str"
"""Token ids, or the characters of a text."""

Unit = Literal["tokens", "characters", "wire"]
"""What a rendering is counted in; renderings of different units are never compared."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a chat template is given.

    Attributes:
        model: The served model's name.
        messages: Wire messages.
        tools: Tool schemas, in the order sent.
        fields: Other fields that enter the prompt (`chat_template_kwargs`, `reasoning_effort`, …).
        add_generation_prompt: Whether the assistant's opener is rendered at the end.
        continue_final_message: Whether the last message is left open to be continued.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @classmethod
    def of(cls, trunk: Trunk) -> Prompt:
        """The prompt that the orchestrator's request renders."""
        return cls(
            model=trunk.model, messages=trunk.messages, tools=trunk.tools, fields=trunk.fields
        )

    def with_messages(self, messages: Sequence[Message]) -> Prompt:
        """The same prompt with other messages."""
        return replace(self, messages=tuple(messages))


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered prompt.

    Attributes:
        unit: What `items` are: token ids, or characters of template or wire text.
        items: A tuple of token ids, or a string.
        source: Which renderer made it.
    """

    unit: Unit
    items: tuple[int, ...] | str
    source: str

    def __len__(self) -> int:
        return len(self.items)


@runtime_checkable
class Renderer(Protocol):
    """Turns prompts into renderings. The only way that alignment and guard do I/O."""

    unit: Unit

    async def render(self, prompt: Prompt) -> Rendering:
        """Render one prompt.

        Raises:
            AlignmentError: The template or the server refused the prompt.
        """
        ...

    async def tokens(self, text: str) -> tuple[int, ...] | str:
        """The items of a bare text, special tokens in it recognised, none added."""
        ...


@runtime_checkable
class Detokenizer(Protocol):
    """What a renderer may also be: able to turn items back into text."""

    async def text(self, items: Items) -> str:
        """The text of some items of a rendering."""
        ...


class RendererUnavailableError(AlignmentError):
    """The renderer cannot be used (a 403 or 404, no connection), so no carrier can be proved.

    Raised by the `post` given to a `ServerRenderer`; a prompt that the server merely refuses (a
    400, for example from a template that raises) is a plain `AlignmentError`.
    """


def common(a: Rendering, b: Rendering) -> int:
    """Items of common prefix of two renderings.

    Raises:
        AlignmentError: The renderings are counted in different units.
    """
    if a.unit != b.unit:
        msg = f"Cannot compare {a.unit} (from {a.source}) with {b.unit} (from {b.source})."
        raise AlignmentError(msg)
    return common_prefix(a.items, b.items)


def enters_prompt(prompt: Prompt) -> dict[str, Any]:
    """The template's keyword arguments, derived as vLLM's chat route derives them.

    `documents` and `reasoning_effort` are template arguments, and an effort also sets
    `enable_thinking` (facts/templates.md §1); `/tokenize` has neither field.
    """
    fields = prompt.fields
    kwargs = dict(fields.get("chat_template_kwargs") or {})
    effort = fields.get("reasoning_effort")
    if effort is not None:
        kwargs.setdefault("enable_thinking", effort != "none")
        kwargs["reasoning_effort"] = effort
    if fields.get("documents") is not None:
        kwargs["documents"] = fields["documents"]
    return kwargs


def reasoning_renamed(message: Message) -> dict[str, Any]:
    """A copy of `message` with `reasoning_content` under the name that `/tokenize` reads."""
    renamed = dict(message)
    legacy = renamed.pop("reasoning_content", None)
    if legacy is not None and renamed.get("reasoning") is None:
        renamed["reasoning"] = legacy
    return renamed
