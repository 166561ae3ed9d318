"""A server on which each role says what a test has written down for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient

from langgraph_shadow import Shadow
from tests.faults.server import MODEL, FaultServer, Reply, Script, chunk, frame

ROLES = {name: f"You are the {name}. Do what a {name} does." for name in ("finder", "critic")}


def written(name: str, **arguments: Any) -> str:
    """A tool call as the desk's template writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def render(body: Mapping[str, Any]) -> str:
    """A ChatML-like template that writes calls in Hermes' form."""
    text = f"<tools>{json.dumps(body.get('tools') or [])}</tools>"
    for message in body["messages"]:
        text += f"<|{message['role']}|>{message.get('content') or ''}"
        for call in message.get("tool_calls") or ():
            function = call["function"]
            text += written(function["name"], **json.loads(function["arguments"]))
        text += "<|end|>"
    return text + ("<|assistant|>" if body.get("add_generation_prompt", True) else "")


class Desk(FaultServer):
    """Answers each role from a script.

    Attributes:
        says: What is answered, by the request's body; pieces are streamed.
        bodies: Every chat request.
    """

    def __init__(self, says: Callable[[Mapping[str, Any]], str | int]) -> None:
        super().__init__(template=render)
        self.says = says
        self.bodies: list[Mapping[str, Any]] = []

    def _script(self, path: str, body: Mapping[str, Any]) -> Script:
        return self._speak if path == "/v1/chat/completions" else super()._script(path, body)

    async def _speak(self, reply: Reply) -> None:
        self.bodies.append(reply.body)
        said = self.says(reply.body)
        if isinstance(said, int):
            await reply.json({"error": {"message": "not today"}}, status=said)
            return
        usage = self.usage(self.prompt(reply.path, reply.body), branch=False)
        await reply.start()
        for start in range(0, len(said), 5):
            await reply.event(chunk(content=said[start : start + 5]))
        await reply.event(chunk(finish="stop"))
        await reply.event({**frame(), "choices": [], "usage": usage})
        await reply.event("[DONE]")
        await reply.end()

    def llm(self, **options: Any) -> ChatOpenAI:
        settings: dict[str, Any] = {
            "base_url": self.base_url,
            "model": MODEL,
            "api_key": "x",
            "max_retries": 0,
            "stream_usage": True,
            "use_responses_api": False,
            "http_async_client": DefaultAsyncHttpxClient(),
        }
        return ChatOpenAI(**{**settings, **options})

    def shadow(self, **options: Any) -> Shadow:
        return Shadow(self.llm(), **{"branches": [], "guard": "reject", **options})


def role_of(body: Mapping[str, Any]) -> str:
    """Whose request it is: the role stands in its last message."""
    last = str(body["messages"][-1]["content"])
    return next((name for name, role in ROLES.items() if last == role), "")


class Toolbox:
    """Two tools that remember being run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool
        def search(topic: str) -> str:
            """Search the archive."""
            self.ran.append("search")
            return f"{topic}: all about it."

        @tool
        def publish(text: str) -> str:
            """Publish a text."""
            self.ran.append("publish")
            return "published"

        self.search: BaseTool = search
        self.publish: BaseTool = publish
