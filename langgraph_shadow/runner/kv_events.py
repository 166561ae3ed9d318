"""Which blocks a server holds, by the events that it publishes about them.

Needs `--kv-events-config` on the server, and pyzmq and msgspec here. The blocks are vLLM's own, by
their own hashes; nothing is kept here but which tokens each one stands for (facts/vllm.md, "Beyond
one server").
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

log = logging.getLogger("langgraph_shadow.runner")

INSTALL = "pip install 'langgraph-shadow[cluster]'"

_Hash: TypeAlias = "bytes | int"
_Place: TypeAlias = "tuple[_Hash | None, tuple[int, ...], tuple[Any, ...]]"
"""A block's parent, its tokens, and what else is in its hash (salt, adapter)."""

_POLL_MS = 200


class Residency:
    """The blocks of one server. Thread-safe.

    Attributes:
        complete: Whether every block of the server is known: the events were heard from the first
            one on, or since the cache was cleared, and none was lost.
    """

    def __init__(self) -> None:
        self.complete = False
        self._blocks: dict[_Place, _Hash] = {}
        self._places: dict[_Hash, _Place] = {}
        self._block_size = 0
        self._next = 0
        self._lock = threading.Lock()

    def saw(self, number: int, events: Sequence[Mapping[str, Any]]) -> None:
        """A batch of events came.

        Args:
            number: Its place in the server's sequence, from 0.
            events: As vLLM encodes them.
        """
        with self._lock:
            if number == 0:
                self._clear()
            elif number != self._next:
                self.complete = False
            self._next = number + 1
            for event in events:
                self._apply(event)

    def held(self, tokens: Sequence[int], *, salt: str | None = None) -> int | None:
        """Tokens of the longest prefix that is resident; None when that cannot be known.

        Args:
            tokens: A prompt.
            salt: The request's `cache_salt`.
        """
        with self._lock:
            if not self.complete:
                return None
            size, parent, count = self._block_size, None, 0
            while size and count + size <= len(tokens):
                extra = (salt,) if salt and not count else ()
                found = self._blocks.get((parent, tuple(tokens[count : count + size]), extra))
                if found is None:
                    break
                parent, count = found, count + size
            return count

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "AllBlocksCleared":
            self._clear()
        elif kind == "BlockRemoved":
            for block in event["block_hashes"]:
                place = self._places.pop(block, None)
                if place is not None:
                    self._blocks.pop(place, None)
        elif kind == "BlockStored":
            self._store(event)

    def _store(self, event: Mapping[str, Any]) -> None:
        size = self._block_size = event["block_size"]
        parent, tokens = event["parent_block_hash"], event["token_ids"]
        hashes = event["block_hashes"]
        extras = event.get("extra_keys") or [None] * len(hashes)
        for index, (block, extra) in enumerate(zip(hashes, extras, strict=True)):
            own = tuple(tokens[index * size : (index + 1) * size])
            place: _Place = (parent, own, tuple(extra or ()))
            self._blocks[place], self._places[block] = block, place
            parent = block

    def _clear(self) -> None:
        self._blocks.clear()
        self._places.clear()
        self.complete = True


class KVEvents:
    """Listens to one server in a thread of its own, from `start` to `stop`."""

    def __init__(self, endpoint: str, residency: Residency) -> None:
        """Tell `residency` what is heard at a ZMQ endpoint (`ipc://…` or `tcp://HOST:PORT`).

        Raises:
            ImportError: pyzmq or msgspec is missing; names the extra.
        """
        if find_spec("zmq") is None or find_spec("msgspec") is None:
            msg = f"kv_events needs pyzmq and msgspec: {INSTALL}"
            raise ImportError(msg)
        self._endpoint = endpoint
        self._residency = residency
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, name="langgraph-shadow-kv", daemon=True
        )

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; returns at once."""
        self._over.set()
        if self._thread.is_alive():
            self._residency.complete = False

    def _listen(self) -> None:
        import msgspec
        import zmq

        socket: Any = zmq.Context.instance().socket(zmq.SUB)
        try:
            socket.connect(self._endpoint)
            socket.subscribe(b"")
            while not self._over.is_set():
                if not socket.poll(_POLL_MS):
                    continue
                _, number, payload = socket.recv_multipart()
                batch = msgspec.msgpack.decode(payload)
                self._residency.saw(int.from_bytes(number, "big"), batch[1])
        except Exception as error:  # without events everything goes on as before
            self._residency.complete = False
            log.warning("KV events of %s can no longer be read: %r", self._endpoint, error)
        finally:
            socket.close(linger=0)
