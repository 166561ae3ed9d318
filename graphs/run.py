"""Run an example in the terminal, with `async for` or, after `--sync`, with a plain `for`.

python -m graphs.run swarm "How do I read a CSV file into dictionaries?"
"""

import asyncio
import importlib
import sys
from typing import Any

from langgraph.graph.state import CompiledStateGraph

from langgraph_shadow import Shadow

QUESTION = "How do I read a CSV file into dictionaries?"
MODES = ["updates", "custom", "values"]


def show(mode: str, chunk: dict[str, Any]) -> None:
    """Print the nodes that ran, and what the shadow said."""
    if mode == "updates":
        print("·", *chunk)
    elif mode == "custom" and chunk["type"] == "shadow.update":
        print("  shadow ▸", chunk["text"])


async def run(graph: CompiledStateGraph, shadow: Shadow, question: str, thread: str) -> str:
    """The usual way; returns the agent's answer."""
    inputs = {"messages": [("user", question)]}
    config = {"configurable": {"thread_id": thread}}
    answer = ""
    stream = graph.astream(inputs, config, stream_mode=MODES, subgraphs=True)
    async for namespace, mode, chunk in stream:
        show(mode, chunk)
        if mode == "values" and not namespace:
            answer = chunk["messages"][-1].text
    await shadow.drain(timeout=20)  # branches that were still on their way
    return answer


def run_sync(graph: CompiledStateGraph, shadow: Shadow, question: str, thread: str) -> str:
    """The same without an event loop."""
    inputs = {"messages": [("user", question)]}
    config = {"configurable": {"thread_id": thread}}
    answer = ""
    stream = graph.stream(inputs, config, stream_mode=MODES, subgraphs=True)
    for namespace, mode, chunk in stream:
        show(mode, chunk)
        if mode == "values" and not namespace:
            answer = chunk["messages"][-1].text
    shadow.drain_sync(timeout=20)
    return answer


def main(name: str, question: str = QUESTION, how: str = "") -> None:
    """Load the example and run it."""
    example = importlib.import_module(f"graphs.{name}")
    if how == "--sync":
        answer = run_sync(example.graph, example.shadow, question, thread="terminal")
    else:
        answer = asyncio.run(run(example.graph, example.shadow, question, thread="terminal"))
    print(f"\n{answer}\n{example.shadow.ledger}")


if __name__ == "__main__":
    main(*sys.argv[1:])
