"""Vectors of queries that were asked a moment ago."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

Key = tuple[int, str]


class QueryCache:
    """Keeps the least recently used of *size* vectors out, and those older than *seconds*.

    Keys are (space id, text of the query). Thread-safe.
    """

    def __init__(
        self, size: int = 256, seconds: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, tuple[float, tuple[float, ...]]] = OrderedDict()

    def __repr__(self) -> str:
        return f"QueryCache({len(self)} of {self._size})"

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Sequence[float] | None:
        """Return the vector of *key*, None when there is none or it is too old."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if self._clock() - entry[0] >= self._seconds:
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: Key, vector: Sequence[float]) -> None:
        """Remember *vector* for *key*; its age is counted from now."""
        with self._lock:
            self._entries[key] = (self._clock(), tuple(vector))
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
