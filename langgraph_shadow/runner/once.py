"""Say each thing once."""

from __future__ import annotations

import logging
import threading


class Once:
    """Logs a warning the first time its key comes up."""

    def __init__(self, *, max_keys: int = 4096) -> None:
        self._said: set[str] = set()
        self._max_keys = max_keys
        self._lock = threading.Lock()

    def warn(self, log: logging.Logger, key: str, message: str, *args: object) -> None:
        """Log `message % args` unless `key` was used before."""
        with self._lock:
            if key in self._said or len(self._said) >= self._max_keys:
                return
            self._said.add(key)
        log.warning(message, *args)
