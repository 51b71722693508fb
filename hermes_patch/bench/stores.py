"""Synthetic stores: clustered unit vectors around a common direction, as those of models are."""

from __future__ import annotations

import random
import sqlite3
from array import array
from collections.abc import Iterator
from pathlib import Path

from .. import vectors

SPACE = 1
CLUSTERS = 100
_COMMON, _CLUSTER = 0.6, 0.9
_IN_SESSION = 50
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (6);
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT,
    parent_session_id TEXT, started_at REAL NOT NULL, title TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, content TEXT,
    tool_name TEXT, timestamp REAL NOT NULL);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
"""


class Source:
    """Unit vectors of *dims* numbers, the same ones for the same seed.

    Noise is cut out of one long run of normal numbers at random places: a million vectors
    would otherwise take longer to make than to search.
    """

    def __init__(self, dims: int, seed: int = 1) -> None:
        self.dims = dims
        self._random = random.Random(seed)
        gauss = self._random.gauss
        self._noise = array("f", (gauss(0, 1) for _ in range(dims + 65_537)))
        self._common = [gauss(0, 1) for _ in range(dims)]
        self._centres = [self._centre() for _ in range(CLUSTERS)]

    def _centre(self) -> list[float]:
        return [_COMMON * common + _CLUSTER * self._random.gauss(0, 1) for common in self._common]

    def vector(self) -> list[float]:
        """Return the next vector."""
        at = self._random.randrange(65_537)
        centre = self._random.choice(self._centres)
        noise = self._noise[at : at + self.dims]
        return vectors.normalise([c + n for c, n in zip(centre, noise, strict=True)])


def build(path: Path, size: int, dims: int) -> list[list[float]]:
    """Make a store of *size* vectors at *path* and return 20 query vectors."""
    from .. import migrations

    source = Source(dims)
    conn = sqlite3.connect(path)
    conn.executescript(_SCHEMA)
    migrations.apply(conn)
    conn.execute(
        "INSERT INTO embedding_spaces (id, settings_key, provider, model, dims, created_at) "
        "VALUES (?, 'bench', 'bench', 'bench', ?, 0)",
        (SPACE, dims),
    )
    sessions = ((f"s{n}", "cli", float(n)) for n in range(size // _IN_SESSION + 1))
    conn.executemany("INSERT INTO sessions (id, source, started_at) VALUES (?, ?, ?)", sessions)
    conn.executemany(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
        _messages(size),
    )
    conn.executemany(
        "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
        "created_at, space_id) VALUES (?, ?, ?, ?, ?, 0, ?)",
        (
            (n + 1, f"s{n // _IN_SESSION}", vectors.pack(source.vector()), f"{n:032x}", dims, SPACE)
            for n in range(size)
        ),
    )
    conn.commit()
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()
    return [source.vector() for _ in range(20)]


def _messages(size: int) -> Iterator[tuple[str, str, str, float]]:
    for n in range(size):
        role = "user" if n % 2 == 0 else "assistant"
        yield f"s{n // _IN_SESSION}", role, f"message number {n} of a synthetic history", float(n)
