"""The search for ghosts: shadow text found where it must not be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel


def texts_in(value: object) -> Iterator[str]:
    """Every text in a value, however deep: messages, containers, a checkpointer's raw bytes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes | bytearray):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, BaseModel):
        yield from texts_in(value.model_dump())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from texts_in(item)


def count_ghosts(shadow: Iterable[str], places: Iterable[object], *, own: Iterable[str]) -> int:
    """How often shadow text occurs in the places.

    Args:
        shadow: The shadow's instructions and sentences.
        places: State, checkpoints, stream: whatever must hold none of them.
        own: What the model itself replied and the tools returned. A sentence may repeat a
            docstring word for word, and then it is no ghost in that docstring.
    """
    wanted = {text.strip() for text in shadow} - {""}
    rightful = {
        ghost: sorted({text for text in own if ghost in text}, key=len, reverse=True)
        for ghost in wanted
    }
    count = 0
    for text in texts_in(list(places)):
        for ghost in wanted:
            rest = text
            for allowed in rightful[ghost]:
                rest = rest.replace(allowed, "\0")
            count += rest.count(ghost)
    return count
