"""The server's own rendering, through `/tokenize`, and the wire text when there is no server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from langgraph_shadow.alignment.render import (
    Items,
    Prompt,
    RendererUnavailableError,
    Rendering,
    Unit,
    enters_prompt,
    reasoning_renamed,
)
from langgraph_shadow.errors import AlignmentError
from langgraph_shadow.trunk.model import canonical

Post: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""Posts a JSON body to a path of the server's root and returns the JSON answer.

Raises `RendererUnavailableError` when the route cannot be used (403, 404, no connection) and
`AlignmentError` when the server refused this prompt (400), with the server's own sentence.
"""

_TEXTS = 64
"""Bare texts whose token ids are kept: a server's few instructions, and the nonce."""


class ServerRenderer:
    """Renders through vLLM's `/tokenize`, in tokens.

    Equals the chat route's `prompt_token_ids` (facts/vllm.md, "Prompt tokens").

    Attributes:
        unit: Always "tokens".
        model: Served model whose tokenizer is used for bare texts.
    """

    unit: Unit = "tokens"

    def __init__(self, post: Post, *, model: str) -> None:
        """Keep `post`, the caller's way to the server; see `Post` for what it must raise."""
        self._post = post
        self._texts: dict[str, tuple[int, ...]] = {}
        self.model = model

    async def render(self, prompt: Prompt) -> Rendering:
        """Render one prompt with the server's own chat template."""
        body: dict[str, Any] = {
            "model": prompt.model,
            "messages": [reasoning_renamed(m) for m in prompt.messages],
            "add_generation_prompt": prompt.add_generation_prompt,
            "continue_final_message": prompt.continue_final_message,
        }
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        kwargs = enters_prompt(prompt)
        if kwargs:
            body["chat_template_kwargs"] = kwargs
        for name in ("chat_template", "mm_processor_kwargs"):
            if prompt.fields.get(name) is not None:
                body[name] = prompt.fields[name]
        return Rendering("tokens", await self._ids(body), "/tokenize")

    async def tokens(self, text: str) -> tuple[int, ...]:
        """Token ids of a bare text; the same few texts are asked for again and again."""
        if text not in self._texts:
            if len(self._texts) >= _TEXTS:
                self._texts.clear()
            body = {"model": self.model, "prompt": text, "add_special_tokens": False}
            self._texts[text] = await self._ids(body)
        return self._texts[text]

    async def text(self, items: Items) -> str:
        """The text of some token ids, through `/detokenize`."""
        answer = await self._post("/detokenize", {"model": self.model, "tokens": list(items)})
        return str(answer.get("prompt", ""))

    async def _ids(self, body: dict[str, Any]) -> tuple[int, ...]:
        answer = await self._post("/tokenize", body)
        ids = answer.get("tokens")
        if not isinstance(ids, list):
            msg = "The server's /tokenize answer has no `tokens`; it is not vLLM's."
            raise RendererUnavailableError(msg)
        return tuple(ids)


class WireRenderer:
    """Renders the wire text itself, when neither a server nor a template can be asked.

    Good for comparing two prompts message by message; it predicts no tokens.
    """

    unit: Unit = "wire"

    async def render(self, prompt: Prompt) -> Rendering:
        """The tools and messages as canonical JSON, one per line."""
        lines = [list(prompt.tools), *(reasoning_renamed(m) for m in prompt.messages)]
        text = "".join(canonical(line).decode("utf-8", "replace") + "\n" for line in lines)
        return Rendering("wire", text, "wire")

    async def tokens(self, text: str) -> str:
        """The text itself."""
        return text

    async def text(self, items: Items) -> str:
        """The items themselves."""
        if isinstance(items, str):
            return items
        msg = "Wire text has no token ids."
        raise AlignmentError(msg)
