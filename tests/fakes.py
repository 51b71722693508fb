"""Stand-ins for the far side: an embedder that counts, and a plain database."""

from __future__ import annotations

import hashlib
import math
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hermes_patch import migrations
from hermes_patch.connecting import connect_readonly
from hermes_patch.embedders.base import PROBE_TEXT, Description, Item

T = TypeVar("T")

HOST_SCHEMA = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (6);
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT,
    parent_session_id TEXT, started_at REAL NOT NULL, title TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, content TEXT,
    tool_name TEXT, timestamp REAL NOT NULL);
"""


def unit(text: str, dims: int = 8, salt: str = "") -> list[float]:
    """Return a unit vector that depends on the text alone."""
    seed = hashlib.sha256((salt + text).encode("utf-8", "replace")).digest()
    source = random.Random(seed)
    values = [source.gauss(0, 1) for _ in range(dims)]
    norm = math.sqrt(sum(v * v for v in values))
    return [v / norm for v in values]


class CountingEmbedder:
    """An embedder in this process that remembers what it was sent; ``fail`` may raise."""

    is_local = True

    def __init__(self, dims: int = 8, salt: str = "", batch_size: int = 16) -> None:
        self.dims = dims
        self.salt = salt
        self.batch_size = batch_size
        self.sent: list[str] = []
        self.requests = 0
        self.fail: Callable[[Sequence[str]], list[Item] | None] = lambda texts: None

    @property
    def messages_sent(self) -> list[str]:
        """What was sent, without the probe sentence."""
        return [text for text in self.sent if text != PROBE_TEXT]

    def describe(self) -> Description:
        return Description("fake", "fake-model", self.dims)

    def embed_documents(self, texts: Sequence[str]) -> list[Item]:
        self.requests += 1
        self.sent += texts
        failed = self.fail(texts)
        return failed or [Item(unit(text, self.dims, self.salt)) for text in texts]

    def embed_query(self, text: str, timeout: float) -> list[float]:
        self.fail([text])
        return unit(text, self.dims, self.salt)

    def close(self) -> None:
        pass


class PlainDatabase:
    """A state.db with the host's two tables, written without any host."""

    def __init__(self, path: Path, migrate: bool = True) -> None:
        self.path = path
        self.conn = sqlite3.connect(path, isolation_level=None)
        self.conn.executescript("PRAGMA journal_mode=WAL; PRAGMA foreign_keys=ON;" + HOST_SCHEMA)
        if migrate:
            migrations.apply(self.conn)
        self.writes = 0

    def session(self, session_id: str = "s1", source: str = "cli", started: float = 1.0) -> None:
        """Add a session."""
        row = (session_id, source, started)
        self.conn.execute("INSERT INTO sessions (id, source, started_at) VALUES (?,?,?)", row)

    def message(
        self, text: str | None, session_id: str = "s1", role: str = "user", at: float = 1.0
    ) -> int:
        """Add a message and return its id; makes the session where it is missing."""
        if not self.conn.execute("SELECT 1 FROM sessions WHERE id=?", (session_id,)).fetchone():
            self.session(session_id)
        cursor = self.conn.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?,?,?,?)",
            (session_id, role, text, at),
        )
        return int(cursor.lastrowid or 0)

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        conn = connect_readonly(self.path)
        try:
            yield conn
        finally:
            conn.close()

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        self.writes += 1
        self.conn.execute("BEGIN IMMEDIATE")
        try:
            result = change(self.conn)
        except BaseException:
            self.conn.rollback()
            raise
        self.conn.commit()
        return result

    def vectors(self) -> dict[int, int]:
        """Return how many vectors each message has."""
        rows = self.conn.execute("SELECT msg_id, count(*) FROM message_embeddings GROUP BY msg_id")
        return dict(rows.fetchall())
