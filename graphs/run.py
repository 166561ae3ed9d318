"""Run an example in the terminal, with `async for` or, after `--sync`, with a plain `for`.

python -m graphs.run swarm "How do I read a CSV file into dictionaries?"
"""

import asyncio
import importlib
import sys

QUESTION = "How do I read a CSV file into dictionaries?"


def show(mode: str, chunk: dict) -> None:
    """Print the nodes that ran, and what the shadow said."""
    if mode == "updates":
        print("·", *chunk)
    elif chunk.get("type") == "shadow.update":
        print("  shadow ▸", chunk["text"])


async def run(graph, shadow, question: str) -> str:
    """The usual way; returns the agent's answer."""
    inputs = {"messages": [("user", question)]}
    answer = ""
    stream = graph.astream(inputs, stream_mode=["updates", "custom", "values"], subgraphs=True)
    async for namespace, mode, chunk in stream:
        if mode != "values":
            show(mode, chunk)
        elif not namespace:
            answer = chunk["messages"][-1].text
    await shadow.drain(timeout=20)  # branches that were still on their way
    return answer


def run_sync(graph, shadow, question: str) -> str:
    """The same without an event loop."""
    inputs = {"messages": [("user", question)]}
    answer = ""
    stream = graph.stream(inputs, stream_mode=["updates", "custom", "values"], subgraphs=True)
    for namespace, mode, chunk in stream:
        if mode != "values":
            show(mode, chunk)
        elif not namespace:
            answer = chunk["messages"][-1].text
    shadow.drain_sync(timeout=20)
    return answer


def main(name: str, question: str = QUESTION, how: str = "") -> None:
    """Load the example and run it."""
    example = importlib.import_module(f"graphs.{name}")
    if how == "--sync":
        answer = run_sync(example.graph, example.shadow, question)
    else:
        answer = asyncio.run(run(example.graph, example.shadow, question))
    print("\n" + answer)
    print(example.shadow.ledger)


if __name__ == "__main__":
    main(*sys.argv[1:])
