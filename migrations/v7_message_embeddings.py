"""Add the vectors of messages, their spaces, the reasons for missing ones, and the lease.

A ``message_embeddings`` made by hand from the guide (msg_id, session_id, embedding …, none
of our columns) is adopted with its vectors: they become a space of their own, which the
first embedder that reproduces one of them takes over. A table of that name in any other
shape is refused.
"""

from __future__ import annotations

import json
import sqlite3
import time

from hermes_patch import text as texts
from hermes_patch import vectors
from hermes_patch.errors import SchemaError, VectorError

GUIDE_KEY = "guide"
"""``settings_key`` of a space whose vectors were made before us."""

_EMBEDDINGS = """
CREATE TABLE message_embeddings (
    id INTEGER PRIMARY KEY,
    msg_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
    session_id TEXT NOT NULL,
    embedding BLOB NOT NULL,
    text_hash TEXT NOT NULL,
    dims INTEGER NOT NULL,
    created_at REAL NOT NULL,
    space_id INTEGER NOT NULL,
    chunk INTEGER NOT NULL DEFAULT 0,
    chunk_start INTEGER NOT NULL DEFAULT 0,
    chunk_end INTEGER NOT NULL DEFAULT 0,
    UNIQUE (msg_id, space_id, chunk)
)"""
_OTHERS = (
    """
CREATE TABLE IF NOT EXISTS embedding_spaces (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    settings_key TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    dims INTEGER NOT NULL,
    probe BLOB,
    created_at REAL NOT NULL
)""",
    """
CREATE TABLE IF NOT EXISTS embedding_skips (
    msg_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
    space_id INTEGER NOT NULL,
    text_hash TEXT NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_try REAL,
    PRIMARY KEY (msg_id, space_id)
) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS embedding_lease (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    owner TEXT NOT NULL,
    expires_at REAL NOT NULL
)""",
    "CREATE TABLE IF NOT EXISTS embedding_state (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
)
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS idx_embeddings_text ON message_embeddings(space_id, text_hash)",
    "CREATE INDEX IF NOT EXISTS idx_embeddings_session ON message_embeddings(session_id)",
)
_OURS = frozenset({"msg_id", "session_id", "embedding", "text_hash", "dims", "space_id", "chunk"})
_GUIDES = frozenset({"msg_id", "session_id", "embedding"})


def apply(conn: sqlite3.Connection) -> None:
    """Make the tables inside the caller's transaction; raises SchemaError."""
    found = {str(row[1]) for row in conn.execute("PRAGMA table_info(message_embeddings)")}
    if found and not found >= _OURS and not found >= _GUIDES:
        raise SchemaError(
            "state.db: a table message_embeddings exists with the columns "
            f"{', '.join(sorted(found))}; expected at least {', '.join(sorted(_GUIDES))}. "
            "It is not ours and stays untouched: rename or drop it, then run apply again."
        )
    for statement in _OTHERS:
        conn.execute(statement)
    if not found:
        conn.execute(_EMBEDDINGS)
    elif not found >= _OURS:
        _adopt(conn, found)
    else:
        _drop_strays(conn)
    for statement in _INDEXES:
        conn.execute(statement)


def _drop_strays(conn: sqlite3.Connection) -> None:
    """Drop rows of spaces that are lost: a new space could get the number of a lost one."""
    known = "(SELECT id FROM embedding_spaces)"
    conn.execute(f"DELETE FROM message_embeddings WHERE space_id NOT IN {known}")
    conn.execute(f"DELETE FROM embedding_skips WHERE space_id <> 0 AND space_id NOT IN {known}")


def _adopt(conn: sqlite3.Connection, found: set[str]) -> None:
    original = conn.execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'message_embeddings' AND sql IS NOT NULL "
        "ORDER BY type = 'index'"
    ).fetchall()
    # Copied, not renamed: RENAME fails where an unrelated view or trigger is broken.
    conn.execute("CREATE TABLE message_embeddings_of_guide AS SELECT * FROM message_embeddings")
    conn.execute("DROP TABLE message_embeddings")
    conn.execute(_EMBEDDINGS)
    created = "g.created_at" if "created_at" in found else "NULL"
    rows = conn.execute(
        f"SELECT g.msg_id, m.session_id, g.embedding, m.content, {created} "
        "FROM message_embeddings_of_guide g JOIN messages m ON m.id = g.msg_id ORDER BY g.rowid"
    )
    spaces: dict[int, int] = {}
    for msg_id, session_id, blob, content, created_at in rows.fetchall():
        _adopt_row(conn, spaces, (msg_id, session_id, blob, content, created_at))
    conn.execute("DROP TABLE message_embeddings_of_guide")
    record = {"sql": [row[0] for row in original], "spaces": list(spaces.values())}
    conn.execute("INSERT INTO embedding_state VALUES (?, ?)", (GUIDE_KEY, json.dumps(record)))


def _adopt_row(
    conn: sqlite3.Connection, spaces: dict[int, int], row: tuple[int, str, bytes, object, object]
) -> None:
    msg_id, session_id, blob, content, created_at = row
    try:
        values = vectors.unpack(bytes(blob))
        unit = vectors.to_blob(values)
    except (VectorError, TypeError, ValueError):
        return  # not a vector: the message is simply pending again
    dims = len(values)
    if dims not in spaces:
        cursor = conn.execute(
            "INSERT INTO embedding_spaces (settings_key, provider, model, dims, probe, created_at) "
            "VALUES (?, 'guide', 'unknown', ?, NULL, ?)",
            (GUIDE_KEY, dims, time.time()),
        )
        spaces[dims] = int(cursor.lastrowid or 0)
    text = texts.message_text(content)
    made = created_at if isinstance(created_at, (int, float)) else time.time()
    conn.execute(
        "INSERT OR REPLACE INTO message_embeddings (msg_id, session_id, embedding, text_hash, "
        "dims, created_at, space_id, chunk, chunk_start, chunk_end) VALUES (?,?,?,?,?,?,?,0,0,?)",
        (msg_id, session_id, unit, texts.text_hash(text), dims, made, spaces[dims], len(text)),
    )


def give_back(conn: sqlite3.Connection) -> None:
    """Drop our table; where one made by hand was adopted, make that again with its vectors."""
    row = conn.execute("SELECT value FROM embedding_state WHERE key = ?", (GUIDE_KEY,)).fetchone()
    if row is None:
        conn.execute("DROP TABLE message_embeddings")
        return
    record = json.loads(row[0])
    shared = ("msg_id", "session_id", "embedding", "text_hash", "dims", "created_at")
    places = ",".join("?" * len(record["spaces"]))
    rows = conn.execute(
        f"SELECT {', '.join(shared)} FROM message_embeddings "
        f"WHERE chunk = 0 AND space_id IN ({places}) ORDER BY id",
        record["spaces"],
    ).fetchall()
    conn.execute("DROP TABLE message_embeddings")
    for statement in record["sql"]:
        conn.execute(statement)
    has = {str(row[1]) for row in conn.execute("PRAGMA table_info(message_embeddings)")}
    kept = [name for name in shared if name in has]
    conn.executemany(
        f"INSERT OR IGNORE INTO message_embeddings ({', '.join(kept)}) "
        f"VALUES ({','.join('?' * len(kept))})",
        [[value for name, value in zip(shared, row, strict=True) if name in has] for row in rows],
    )
