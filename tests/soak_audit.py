"""What must be true of a state.db when everything has come to rest."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_patch import layout, vectors
from hermes_patch import text as texts
from hermes_patch.config import Settings
from hermes_patch.connecting import connect_readonly

EXAMPLES = 3
SAME = 0.9999
"""Least cosine of a stored vector and the one its text has, after rounding to float32."""


@dataclass(frozen=True)
class Check:
    """One claim: how many things were looked at, how many break it, and a few of those."""

    name: str
    looked_at: int
    wrong: int
    examples: list[str]

    @property
    def ok(self) -> bool:
        """True when nothing breaks the claim."""
        return not self.wrong


def check(name: str, looked_at: int, wrong: Iterable[object]) -> Check:
    """Return a Check whose findings are *wrong*."""
    found = [str(one) for one in wrong]
    return Check(name, looked_at, len(found), found[:EXAMPLES])


def database(
    path: Path,
    settings: Settings,
    written: Mapping[int, str],
    vector_of: Callable[[str], Sequence[float]],
) -> list[Check]:
    """Check the whole of a state.db.

    ``written`` holds the SHA-256 of every text an appender was told was stored, by message
    id; ``vector_of`` gives the unit vector that the embedder gives a text.
    """
    conn = connect_readonly(path, timeout=10)
    try:
        expected = _expected(conn, settings)
        return [
            _written(conn, written),
            _spaces(conn),
            *_vectors(conn, expected, vector_of),
            _orphans(conn, "message_embeddings"),
            _orphans(conn, "embedding_skips"),
            _lease(conn),
            check("integrity_check says ok", 1, _integrity(conn)),
        ]
    finally:
        conn.close()


@dataclass(frozen=True)
class _Expected:
    """A visible message of an embedded role: its text, hash and chunks (none: no vector)."""

    session_id: str
    text: str
    text_hash: str
    chunks: list[texts.Chunk]


def _expected(conn: sqlite3.Connection, settings: Settings) -> dict[int, _Expected]:
    filters = layout.Filters(role_filter=settings.roles)
    clauses, params = filters.where(layout.read(conn))
    rows = conn.execute(
        "SELECT m.id, m.session_id, m.content FROM messages m "
        f"WHERE {' AND '.join([*clauses, 'm.content IS NOT NULL'])}",
        params,
    )
    result = {}
    for msg_id, session_id, content in rows:
        text = texts.message_text(content)
        worth = texts.is_embeddable(text)
        chunks = texts.chunks(text, settings.max_tokens) if worth else []
        result[msg_id] = _Expected(session_id, text, texts.text_hash(text), chunks)
    return result


def _written(conn: sqlite3.Connection, written: Mapping[int, str]) -> Check:
    there = {
        msg_id: hashlib.sha256((content or "").encode()).hexdigest()
        for msg_id, content in conn.execute("SELECT id, content FROM messages")
    }
    wrong = [f"message {n}" for n, digest in written.items() if there.get(n) != digest]
    return check("every message reported as written is there", len(written), wrong)


def _spaces(conn: sqlite3.Connection) -> Check:
    found = conn.execute("SELECT id, model, dims FROM embedding_spaces").fetchall()
    return check("one space", len(found), [] if len(found) == 1 else [found])


def _vectors(
    conn: sqlite3.Connection,
    expected: Mapping[int, _Expected],
    vector_of: Callable[[str], Sequence[float]],
) -> list[Check]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for msg_id, *row in conn.execute(
        "SELECT msg_id, chunk, chunk_start, chunk_end, text_hash, session_id, embedding "
        "FROM message_embeddings ORDER BY msg_id, chunk"
    ):
        found.setdefault(msg_id, []).append(tuple(row))
    worth = [msg_id for msg_id, item in expected.items() if item.chunks]
    missing = [_why(conn, msg_id) for msg_id in worth if msg_id not in found]
    surplus = [n for n in found if n not in expected or not expected[n].chunks]
    both = {n: rows for n, rows in found.items() if n in expected and expected[n].chunks}
    other = [n for n, rows in both.items() if _places(rows) != _wanted(expected[n])]
    stale = [
        n for n, rows in both.items() if any(_owner(row) != _owned(expected[n]) for row in rows)
    ]
    swapped = [
        n
        for n, rows in both.items()
        if any(_is_other(r, expected[n].text, vector_of) for r in rows)
    ]
    total = sum(map(len, found.values()))
    return [
        check("every embeddable message has vectors", len(worth), missing),
        check("as many and of the same place as its chunks", len(both), other),
        check("no other message has any", len(found), surplus),
        check("every vector's hash and session are its message's", total, stale),
        check("every vector is that of its chunk's text", total, swapped),
    ]


def _places(rows: Sequence[tuple[Any, ...]]) -> list[tuple[int, int, int]]:
    return [(row[0], row[1], row[2]) for row in rows]


def _wanted(item: _Expected) -> list[tuple[int, int, int]]:
    return [(n, chunk.start, chunk.end) for n, chunk in enumerate(item.chunks)]


def _owner(row: tuple[Any, ...]) -> tuple[str, str]:
    return row[3], row[4]


def _owned(item: _Expected) -> tuple[str, str]:
    return item.text_hash, item.session_id


def _is_other(row: tuple[Any, ...], text: str, vector_of: Callable[[str], Sequence[float]]) -> bool:
    _, start, end, _, _, blob = row
    right = vector_of(text[start:end])
    return len(blob) != 4 * len(right) or vectors.cosine(vectors.unpack(blob), right) < SAME


def _why(conn: sqlite3.Connection, msg_id: int) -> str:
    rows = conn.execute(
        "SELECT space_id, reason, attempts FROM embedding_skips WHERE msg_id = ?", (msg_id,)
    ).fetchall()
    return f"message {msg_id}: {rows or 'not even skipped'}"


def _orphans(conn: sqlite3.Connection, table: str) -> Check:
    (total,) = conn.execute(f"SELECT count(*) FROM {table}").fetchone()
    rows = conn.execute(
        f"SELECT DISTINCT t.msg_id FROM {table} t "
        "WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.id = t.msg_id)"
    )
    return check(f"no orphans in {table}", total, [row[0] for row in rows])


def _lease(conn: sqlite3.Connection) -> Check:
    rows = conn.execute("SELECT owner FROM embedding_lease").fetchall()
    return check("no lease is left", len(rows), [row[0] for row in rows])


def _integrity(conn: sqlite3.Connection) -> list[str]:
    rows = [str(row[0]) for row in conn.execute("PRAGMA integrity_check")]
    return [] if rows == ["ok"] else rows
