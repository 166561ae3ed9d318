"""A chat template rendered in this process, through transformers' own renderer."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from langgraph_shadow.alignment.render import (
    Items,
    Prompt,
    Rendering,
    Unit,
    enters_prompt,
    reasoning_renamed,
)
from langgraph_shadow.errors import AlignmentError

if TYPE_CHECKING:
    from langgraph_shadow.trunk.model import Message

Arguments = Literal["object", "string"]
"""How tool-call arguments are handed to the template; vLLM always hands objects."""

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
"""Stand-ins for a bare template file, which comes without a tokenizer."""


class LocalRenderer:
    """Renders a chat template locally: in tokens with a tokenizer, else in characters.

    Attributes:
        unit: "tokens" when a tokenizer was given, else "characters".
        template: Jinja source of the chat template.
        template_id: Hash that identifies it.
    """

    def __init__(
        self,
        template: str,
        *,
        tokenizer: Any = None,
        arguments: Arguments = "object",
        thinking: bool = False,
        clock: Callable[[str], str] | None = None,
        source: str = "template",
    ) -> None:
        """Prepare a renderer.

        Args:
            template: Jinja source of the chat template.
            tokenizer: A transformers tokenizer; without one the unit is characters.
            arguments: How tool-call arguments are handed to the template.
            thinking: Whether reasoning is also handed over as `thinking`, the one name that some
                templates read (gpt-oss). vLLM does so for gpt-oss only, through Harmony.
            clock: Replaces the template's `strftime_now`, to render on a fixed date.
            source: Name for the renderings' `source`.

        Raises:
            AlignmentError: The `templates` extra is not installed.
        """
        try:
            from transformers.utils.chat_template_utils import render_jinja_template
        except ImportError as error:
            msg = (
                "Rendering a chat template locally needs the `templates` extra: "
                "pip install 'langgraph-shadow[templates]'."
            )
            raise AlignmentError(msg) from error
        self.unit: Unit = "characters" if tokenizer is None else "tokens"
        self.template_id = hashlib.blake2b(template.encode(), digest_size=8).hexdigest()
        self._renderer = render_jinja_template
        self.template = template
        self._tokenizer = tokenizer
        self._arguments: Arguments = arguments
        self._thinking = thinking
        self._source = source
        self._extra: dict[str, Any] = dict(SPECIAL_TOKENS)
        if tokenizer is not None:
            self._extra = dict(tokenizer.special_tokens_map)
        if clock is not None:
            self._extra["strftime_now"] = clock

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> LocalRenderer:
        """Read a `.jinja` file.

        Raises:
            AlignmentError: The file cannot be read, or is not UTF-8 text.
        """
        try:
            template = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"{path} cannot be read as a UTF-8 template file: {error}"
            raise AlignmentError(msg) from error
        return cls(template, source=Path(path).name, **options)

    @classmethod
    def from_folder(cls, folder: str | Path, **options: Any) -> LocalRenderer:
        """Use the tokenizer and the chat template of a model folder.

        Raises:
            AlignmentError: There is no tokenizer, or it has no chat template.
        """
        try:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except ImportError as error:
            msg = "Reading a tokenizer needs the `templates` extra of langgraph-shadow."
            raise AlignmentError(msg) from error
        except (OSError, ValueError, KeyError) as error:
            msg = f"No tokenizer could be read from {folder}: {error}"
            raise AlignmentError(msg) from error
        template = tokenizer.chat_template
        if isinstance(template, Mapping):
            template = template.get("tool_use") or template.get("default")
        if not template:
            msg = f"The tokenizer in {folder} has no chat template; pass the .jinja file instead."
            raise AlignmentError(msg)
        return cls(template, tokenizer=tokenizer, source=str(folder), **options)

    async def render(self, prompt: Prompt) -> Rendering:
        """Render one prompt in a worker thread, so that a long one does not hold up the loop."""
        return await asyncio.to_thread(self.render_now, prompt)

    def render_now(self, prompt: Prompt) -> Rendering:
        """Render one prompt in the calling thread.

        Raises:
            AlignmentError: The template raised, with its own words.
        """
        try:
            (text,), _ = self._renderer(
                [[self._prepared(m) for m in prompt.messages]],
                tools=[dict(t) for t in prompt.tools] or None,
                chat_template=prompt.fields.get("chat_template") or self.template,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                **{**self._extra, **enters_prompt(prompt)},
            )
        except Exception as error:
            # A template is a program: whatever it raises means that it refuses this prompt.
            words = " ".join(str(error).split())[:200]
            msg = f"The chat template refused the prompt: {type(error).__name__}: {words}"
            raise AlignmentError(msg) from error
        return Rendering(self.unit, self._items(text), self._source)

    async def tokens(self, text: str) -> Items:
        """The items of a bare text."""
        return self._items(text)

    async def text(self, items: Items) -> str:
        """The text of some items."""
        if isinstance(items, str):
            return items
        return str(self._tokenizer.decode(list(items)))

    def _prepared(self, message: Message) -> dict[str, Any]:
        prepared = prepare(message, arguments=self._arguments)
        if self._thinking and "reasoning" in prepared:
            prepared["thinking"] = prepared["reasoning"]
        return prepared

    def _items(self, text: str) -> Items:
        if self._tokenizer is None:
            return text
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def prepare(message: Message, *, arguments: Arguments = "object") -> dict[str, Any]:
    """One wire message as vLLM hands it to the chat template.

    Null content becomes "", text parts are joined by newlines, arguments become objects, an empty
    `tool_calls` disappears, reasoning goes under both of its names.
    """
    role = message["role"]
    prepared: dict[str, Any] = {"role": role, "content": _content(message.get("content"))}
    if role == "assistant":
        if message.get("tool_calls"):
            prepared["tool_calls"] = [_call(c, arguments) for c in message["tool_calls"]]
        reasoning = reasoning_renamed(message).get("reasoning")
        if reasoning is not None:
            prepared["reasoning"] = prepared["reasoning_content"] = reasoning
    if "tool_call_id" in message:
        prepared["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        prepared["name"] = message["name"]
    return prepared


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = [p if isinstance(p, str) else p.get("text") for p in content]
    if all(isinstance(text, str) for text in texts):
        return "\n".join(texts)
    return [{"type": "text", "text": p} if isinstance(p, str) else dict(p) for p in content]


def _call(call: Mapping[str, Any], arguments: Arguments) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    given = function.get("arguments")
    if arguments == "object":
        try:
            given = json.loads(given) if isinstance(given, str) else given
        except json.JSONDecodeError:
            given = {}
        function["arguments"] = dict(given) if isinstance(given, Mapping) else {}
    elif not isinstance(given, str):
        function["arguments"] = json.dumps(given or {}, ensure_ascii=False)
    return {**call, "function": function}
