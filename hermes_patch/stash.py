"""Vectors of messages that are about to be deleted and written again, by text hash.

Hermes replaces whole transcripts: DELETE, then INSERT under new ids. The cascade takes the
vectors with it; what is kept here lets the new rows have them without sending a text twice.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from .store import ChunkVector

KEEP_SECONDS = 600.0
KEEP_BYTES = 32 * 1024 * 1024


class Stash:
    """A bounded, thread-safe memory of vectors; the oldest go first."""

    def __init__(
        self,
        seconds: float = KEEP_SECONDS,
        most_bytes: int = KEEP_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._most = most_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes = 0
        self._kept: OrderedDict[tuple[int, str], tuple[float, list[ChunkVector]]] = OrderedDict()

    def keep(self, found: Mapping[tuple[int, str], list[ChunkVector]]) -> None:
        """Remember vectors by (space id, text hash)."""
        with self._lock:
            for key, chunks in found.items():
                self._drop(key)
                self._kept[key] = (self._clock() + self._seconds, chunks)
                self._bytes += sum(len(chunk.blob) for chunk in chunks)
            while self._kept and self._bytes > self._most:
                self._drop(next(iter(self._kept)))

    def find(self, space_id: int, hashes: Iterable[str]) -> dict[str, list[ChunkVector]]:
        """Return what is still remembered for texts of a space."""
        with self._lock:
            now = self._clock()
            while self._kept and next(iter(self._kept.values()))[0] <= now:
                self._drop(next(iter(self._kept)))
            return {h: self._kept[space_id, h][1] for h in hashes if (space_id, h) in self._kept}

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _drop(self, key: tuple[int, str]) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._bytes -= sum(len(chunk.blob) for chunk in entry[1])


def session_vectors(
    conn: sqlite3.Connection, session_id: str, limit: int
) -> dict[tuple[int, str], list[ChunkVector]]:
    """Return a session's vectors by (space id, text hash), at most *limit* chunks.

    Of a message that does not fit whole, nothing is returned.
    """
    rows = conn.execute(
        "SELECT space_id, text_hash, msg_id, chunk, chunk_start, chunk_end, embedding "
        "FROM message_embeddings WHERE session_id = ? ORDER BY msg_id DESC, chunk LIMIT ?",
        (session_id, limit),
    ).fetchall()
    cut = rows[-1][2] if len(rows) == limit else None
    result: dict[tuple[int, str], dict[int, ChunkVector]] = {}
    for space_id, text_hash, msg_id, *chunk in rows:
        if msg_id != cut:
            result.setdefault((space_id, text_hash), {}).setdefault(chunk[0], ChunkVector(*chunk))
    return {key: [chunks[n] for n in sorted(chunks)] for key, chunks in result.items()}
