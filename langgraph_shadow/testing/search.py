"""The search for ghosts: shadow text found where it must not be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

_EXCERPT = 40


@dataclass(frozen=True, slots=True)
class Ghost:
    """Shadow text, and where it was found.

    Attributes:
        text: The shadow text.
        place: Where it was: `stream values`, `state`, `saver table writes`, …
        path: Where in that place: `.values.messages.3.content`.
        excerpt: The text around it.
    """

    text: str
    place: str
    path: str
    excerpt: str


class GhostFound(AssertionError):  # noqa: N818 - it reads as what a test found
    """Shadow text was found where it must not be.

    Attributes:
        ghosts: What was found, and where.
    """

    def __init__(self, ghosts: Iterable[Ghost]) -> None:
        self.ghosts = tuple(ghosts)
        first = self.ghosts[0]
        places = ", ".join(self.places)
        super().__init__(
            f"shadow text in {places}: {first.text!r} at {first.place}{first.path}: "
            f"…{first.excerpt}…"
        )

    @property
    def places(self) -> tuple[str, ...]:
        """The places, each once, in the order in which they were searched."""
        return tuple(dict.fromkeys(ghost.place for ghost in self.ghosts))


class Wanted:
    """The texts that are looked for."""

    def __init__(self, ghosts: Iterable[str], *, own: Iterable[str] = ()) -> None:
        """Prepare a search.

        Args:
            ghosts: Shadow texts: instructions, answers, or marks in them.
            own: Texts that the agent and its tools may hold: what the model itself replied and
                what the tools returned. A sentence may repeat a document word for word, and is
                then no ghost in that document.
        """
        self.ghosts = tuple(dict.fromkeys(text.strip() for text in ghosts if text.strip()))
        own = tuple(own)
        self._rightful = {
            ghost: sorted({text for text in own if ghost in text}, key=len, reverse=True)
            for ghost in self.ghosts
        }

    def found_in(self, value: object, *, place: str = "") -> Iterator[Ghost]:
        """Every ghost in a value, however deep."""
        for path, text in texts_in(value):
            for ghost in self.ghosts:
                rest = text
                for allowed in self._rightful[ghost]:
                    rest = rest.replace(allowed, "\0")
                for form in _forms(ghost):
                    for start in _occurrences(form, rest):
                        around = rest[max(0, start - _EXCERPT) : start + len(form) + _EXCERPT]
                        yield Ghost(ghost, place, path, around)


def count_ghosts(shadow: Iterable[str], places: Iterable[object], *, own: Iterable[str]) -> int:
    """How often shadow text occurs in the places.

    Args:
        shadow: The shadow's instructions and sentences.
        places: State, checkpoints, stream: whatever must hold none of them.
        own: As for `Wanted`.
    """
    wanted = Wanted(shadow, own=own)
    return sum(1 for place in places for _ in wanted.found_in(place))


def texts_in(value: object) -> Iterator[tuple[str, str]]:
    """Every text in a value, with its path: messages, containers, a checkpointer's raw bytes."""
    yield from _texts(value, "", frozenset())


def _texts(value: object, path: str, above: frozenset[int]) -> Iterator[tuple[str, str]]:
    if value is None or isinstance(value, int | float | complex):
        return
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, bytes | bytearray | memoryview):
        yield path, bytes(value).decode("utf-8", "replace")
    elif id(value) not in above:  # a value may hold itself
        for name, item in _parts(value):
            yield from _texts(item, f"{path}{name}", above | {id(value)})


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield ".keys", key
            yield f".{key}", item
    elif isinstance(value, BaseModel):
        for name, item in value:
            yield f".{name}", item
    elif dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield f".{part.name}", getattr(value, part.name, None)
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        for name, item in value._asdict().items():
            yield f".{name}", item
    elif isinstance(value, Collection):
        for index, item in enumerate(value):
            yield f".{index}", item
    else:
        yield "", repr(value)


def _forms(ghost: str) -> Iterator[str]:
    """The text as such, and as JSON writes it."""
    escaped = (json.dumps(ghost, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    yield from dict.fromkeys((ghost, *escaped))


def _occurrences(wanted: str, text: str) -> Iterator[int]:
    start = text.find(wanted)
    while start >= 0:
        yield start
        start = text.find(wanted, start + len(wanted))
