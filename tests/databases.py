"""Small state.db files in the shapes that different versions of Hermes leave behind."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from hermes_patch import migrations, vectors
from hermes_patch import text as texts
from hermes_patch.connecting import connect_readonly

SHAPES = ("schema6", "inline", "external", "bare")
"""Word table over ``messages``; both tables with their own copies (0.13 – 0.19); both over
views (0.22); no full-text table at all."""

_HOST = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (6);
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT,
    parent_session_id TEXT, started_at REAL NOT NULL, title TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, content TEXT,
    tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
"""
_COLUMNS = {
    "schema6": "",
    "bare": "",
    "inline": "active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0",
    "external": "active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0, "
    "display_kind TEXT",
}
_FTS = {
    "bare": "",
    "schema6": "CREATE VIRTUAL TABLE messages_fts USING fts5"
    "(content, content=messages, content_rowid=id);",
    "inline": "CREATE VIRTUAL TABLE messages_fts USING fts5(content);"
    "CREATE VIRTUAL TABLE messages_fts_trigram USING fts5(content, tokenize='trigram');",
    "external": """
CREATE VIEW words AS SELECT id, content, tool_name, tool_calls FROM messages;
CREATE VIRTUAL TABLE messages_fts USING fts5
    (content, tool_name, tool_calls, content='words', content_rowid='id');
CREATE VIEW trigrams AS SELECT id, content, tool_name FROM messages WHERE role <> 'tool';
CREATE VIRTUAL TABLE messages_fts_trigram USING fts5
    (content, tool_name, content='trigrams', content_rowid='id', tokenize='trigram');""",
}
SPACE = 1
DIMS = 3


class HostDatabase:
    """A state.db of one shape, with our tables, filled without any host."""

    def __init__(self, path: Path, shape: str = "inline") -> None:
        self.path = path
        self.shape = shape
        self.conn = sqlite3.connect(path, isolation_level=None)
        self.conn.executescript("PRAGMA journal_mode=WAL;" + _HOST + _FTS[shape])
        for column in filter(None, _COLUMNS[shape].split(", ")):
            self.conn.execute(f"ALTER TABLE messages ADD COLUMN {column}")
        migrations.apply(self.conn)
        self.clock = 1000.0

    def session(self, name: str, source: str = "cli", parent: str | None = None) -> None:
        """Add a session."""
        self.conn.execute(
            "INSERT INTO sessions (id, source, model, parent_session_id, started_at) "
            "VALUES (?, ?, 'm', ?, ?)",
            (name, source, parent, self.clock),
        )

    def say(
        self,
        session: str,
        content: str | list[dict[str, str]],
        role: str = "user",
        vector: Sequence[float] | None = None,
        **columns: object,
    ) -> int:
        """Add a message a second after the last one, indexed as the host does; its id."""
        if not self.conn.execute("SELECT 1 FROM sessions WHERE id=?", (session,)).fetchone():
            self.session(session)
        self.clock += 1
        stored = content if isinstance(content, str) else texts.JSON_PREFIX + json.dumps(content)
        row = {"session_id": session, "role": role, "content": stored, "timestamp": self.clock}
        row.update(columns)
        cursor = self.conn.execute(
            f"INSERT INTO messages ({','.join(row)}) VALUES ({','.join('?' * len(row))})",
            list(row.values()),
        )
        msg_id = int(cursor.lastrowid or 0)
        self._index(msg_id, stored, columns)
        if vector is not None:
            self.embed(msg_id, vector)
        return msg_id

    def _index(self, msg_id: int, content: str, columns: dict[str, object]) -> None:
        more = [str(columns.get(name) or "") for name in ("tool_name", "tool_calls")]
        joined = " ".join([content, *more])
        values = {"schema6": (content,), "inline": (joined,), "external": (content, *more)}
        if self.shape in values:
            self._insert("messages_fts", msg_id, values[self.shape])
        if self.shape == "inline" or (self.shape == "external" and columns.get("role") != "tool"):
            self._insert("messages_fts_trigram", msg_id, values[self.shape][:2])

    def _insert(self, table: str, msg_id: int, values: Sequence[str]) -> None:
        names = ("content", "tool_name", "tool_calls")[: len(values)]
        self.conn.execute(
            f"INSERT INTO {table} (rowid, {', '.join(names)}) "
            f"VALUES (?, {', '.join('?' * len(values))})",
            (msg_id, *values),
        )

    def embed(self, msg_id: int, vector: Sequence[float], start: int = 0, end: int = 0) -> None:
        """Store a vector of a message's text as it is now."""
        content, session = self.conn.execute(
            "SELECT content, session_id FROM messages WHERE id = ?", (msg_id,)
        ).fetchone()
        text = texts.message_text(content)
        self.conn.execute(
            "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
            "created_at, space_id, chunk_start, chunk_end) VALUES (?,?,?,?,?,0,?,?,?)",
            (msg_id, session, vectors.to_blob(vector), texts.text_hash(text))
            + (DIMS, SPACE, start, end or len(text)),
        )

    def reader(self) -> sqlite3.Connection:
        """Open a read-only connection as the search gets it; the caller closes it."""
        return connect_readonly(self.path)
