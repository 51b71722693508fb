"""The notes' own SQLite file, in the shape that the engine reads.

``notes`` is the truth. Two views show it to the engine as messages of sessions: a note is a
message, its scope a session. So vectors, spaces, the reasons for missing ones and every way
of finding the nearest vectors are those of the engine.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from .. import forks, migrations
from ..connecting import identity

T = TypeVar("T")

BUSY_SECONDS = 10.0
_SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS notes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    text TEXT NOT NULL,
    text_hash TEXT NOT NULL,
    scope TEXT NOT NULL REFERENCES scopes(id),
    created REAL NOT NULL,
    superseded REAL,
    superseded_by INTEGER,
    reason TEXT,
    canonical INTEGER NOT NULL DEFAULT 0,
    target TEXT,
    UNIQUE (text_hash, scope)
)""",
    "CREATE TABLE IF NOT EXISTS scopes (id TEXT PRIMARY KEY)",
    """
CREATE TABLE IF NOT EXISTS mirror_queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    text TEXT NOT NULL,
    old TEXT,
    exact INTEGER NOT NULL
)""",
    """
CREATE VIEW IF NOT EXISTS messages AS SELECT id, scope AS session_id, 'user' AS role,
    text AS content, NULL AS tool_name, created AS timestamp, superseded IS NULL AS active
    FROM notes""",
    """
CREATE VIEW IF NOT EXISTS sessions AS SELECT id, id AS source, NULL AS model,
    NULL AS parent_session_id, 0.0 AS started_at, NULL AS title FROM scopes""",
    "CREATE INDEX IF NOT EXISTS idx_notes_scope ON notes(scope, superseded)",
)


class Database:
    """Writes to one memory database; what the engine takes for an open ``SessionDB``.

    Every write is one short transaction on a connection of its own.
    """

    read_only = False

    def __init__(self, path: Path) -> None:
        """Make the file and its tables where they are missing; raises sqlite3.Error, OSError."""
        self.path = path
        self._conn: object = self  # the engine takes a handle without one for closed
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as conn:
            _use_wal(conn)
            with _transaction(conn):
                for statement in _SCHEMA:
                    conn.execute(statement)
                conn.execute("INSERT OR IGNORE INTO scopes VALUES ('global')")
            migrations.apply(conn)
        self.identity = identity(path)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with (
            forks.work(),
            closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as conn,
        ):
            yield conn

    def _execute_write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run *change* in one write transaction; raises what it raises, with nothing changed."""
        with self._lock, self._open() as conn, _transaction(conn):
            return change(conn)


def _use_wal(conn: sqlite3.Connection) -> None:
    """Have readers not wait for writers; where that cannot be had, all works without."""
    for _ in range(40):
        try:
            conn.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:  # the busy timeout does not hold for this statement
            time.sleep(0.05)


@contextmanager
def _transaction(conn: sqlite3.Connection) -> Iterator[None]:
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        conn.rollback()
        raise
    conn.commit()
