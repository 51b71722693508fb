"""Changes to a state.db, applied in order, each recorded by name in the same transaction.

A migration's record lives in our own table; Hermes's ``schema_version`` is touched only
where it still is 6 and Hermes's own constant is 6 too.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import v7_message_embeddings

RECORD = "hermes_patch_migrations"
TABLES = (
    "message_embeddings",
    "embedding_skips",
    "embedding_spaces",
    "embedding_lease",
    "embedding_state",
    RECORD,
)
MIGRATIONS: tuple[tuple[str, Callable[[sqlite3.Connection], None]], ...] = (
    ("v7_message_embeddings", v7_message_embeddings.apply),
)
_VERSION_BEFORE = 6
_VERSION_AFTER = 7


def applied(conn: sqlite3.Connection) -> list[str]:
    """Return the names of the migrations that this database has, oldest first."""
    if not _exists(conn, RECORD):
        return []
    rows = conn.execute(f"SELECT name FROM {RECORD} ORDER BY applied_at, rowid").fetchall()
    return [str(row[0]) for row in rows]


def pending(conn: sqlite3.Connection) -> list[str]:
    """Return the names of the migrations still to apply; a lost table makes its own pending."""
    done = set(applied(conn))
    intact = all(_exists(conn, table) for table in TABLES)
    return [name for name, _ in MIGRATIONS if name not in done or not intact]


def apply(conn: sqlite3.Connection, *, owns_schema_version: bool = False) -> list[str]:
    """Bring the database up to date in one transaction and return what was newly applied.

    Safe to run twice and from two processes at once. ``owns_schema_version`` says that
    Hermes's own constant is 6, so that the number 7 is ours to set.

    Raises:
        SchemaError: a foreign table has one of our names; nothing was changed.
        sqlite3.OperationalError: locked, full or read-only; nothing was changed.
    """
    if not pending(conn):
        return []
    with _transaction(conn):
        names = pending(conn)
        conn.execute(
            f"CREATE TABLE IF NOT EXISTS {RECORD} (name TEXT PRIMARY KEY, applied_at REAL NOT NULL)"
        )
        for name, change in MIGRATIONS:
            if name in names:
                change(conn)
                conn.execute(f"INSERT OR REPLACE INTO {RECORD} VALUES (?, ?)", (name, time.time()))
        if owns_schema_version:
            _raise_schema_version(conn)
    return names


def set_watermark(conn: sqlite3.Connection, before: float | None = None) -> int:
    """Record which messages are history, once, and return that highest history id.

    Messages with a higher id are embedded as they come; history is embedded by a backfill
    only. ``before`` is a time (seconds since 1970): older messages are history; None means
    all there are now.
    """
    with _transaction(conn):
        found = conn.execute("SELECT value FROM embedding_state WHERE key = 'watermark'").fetchone()
        if found is not None and str(found[0]).isdecimal():
            return int(found[0])
        if before is None:
            row = conn.execute("SELECT max(id) FROM messages").fetchone()
        else:
            row = conn.execute(
                "SELECT max(id) FROM messages WHERE timestamp < ?", (before,)
            ).fetchone()
        mark = int(row[0] or 0)
        conn.execute("INSERT OR REPLACE INTO embedding_state VALUES ('watermark', ?)", (str(mark),))
        return mark


def forget_watermark(conn: sqlite3.Connection) -> None:
    """Forget which messages are history: the next apply draws the line anew."""
    if _exists(conn, "embedding_state"):
        with _transaction(conn):
            conn.execute("DELETE FROM embedding_state WHERE key = 'watermark'")


def purge(conn: sqlite3.Connection, host_schema_version: int | None = None) -> list[str]:
    """Drop our tables and return their names; a table made by hand is given back.

    ``schema_version`` goes back to 6 only if it still is 7, we set it, and
    *host_schema_version*, Hermes's own constant, is 6.
    """
    with _transaction(conn):
        was_set = (
            _exists(conn, "embedding_state")
            and conn.execute(
                "SELECT 1 FROM embedding_state WHERE key = 'schema_version_set'"
            ).fetchone()
        )
        if was_set and host_schema_version == _VERSION_BEFORE:
            conn.execute(
                "UPDATE schema_version SET version = ? WHERE version = ?",
                (_VERSION_BEFORE, _VERSION_AFTER),
            )
        dropped = [table for table in TABLES if _exists(conn, table)]
        if {"message_embeddings", "embedding_state"} <= set(dropped):
            v7_message_embeddings.give_back(conn)
        for table in dropped:
            if table != "message_embeddings" or "embedding_state" not in dropped:
                conn.execute(f"DROP TABLE {table}")
    return dropped


def _raise_schema_version(conn: sqlite3.Connection) -> None:
    if not _exists(conn, "schema_version"):
        return
    changed = conn.execute(
        "UPDATE schema_version SET version = ? WHERE version = ?", (_VERSION_AFTER, _VERSION_BEFORE)
    ).rowcount
    if changed:
        conn.execute("INSERT OR REPLACE INTO embedding_state VALUES ('schema_version_set', '7')")


def _exists(conn: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return conn.execute(query, (table,)).fetchone() is not None


@contextmanager
def _transaction(conn: sqlite3.Connection) -> Iterator[None]:
    """One write transaction, or a part of the one that is open already."""
    if conn.in_transaction:
        yield
        return
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        conn.rollback()
        raise
    conn.commit()
