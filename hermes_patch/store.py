"""All SQL on our own tables.

Functions take an open connection: a short-lived read-only one of ours, or the one that the
host's write helper hands to a callback. Those that write are safe to run again, since that
helper repeats its callback when the database was busy.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from . import text as texts
from .layout import Filters, Layout
from .spaces import Space

TABLES = (
    *("message_embeddings", "embedding_spaces", "embedding_skips", "embedding_lease"),
    "embedding_state",
)
MAX_ATTEMPTS = 5
NO_SPACE = 0
"""``space_id`` of a skip that holds in every space: the message has nothing to embed."""
EDITED = "edited"
"""``text_hash`` of the mark on a message whose text changed after it was embedded."""


@dataclass(frozen=True)
class PendingMessage:
    """A message that may need a vector: its text and that text's hash."""

    msg_id: int
    session_id: str
    role: str
    text: str = field(repr=False)
    text_hash: str


@dataclass(frozen=True)
class ChunkVector:
    """One vector of a text: ``blob`` is a unit vector, start and end are character offsets."""

    chunk: int
    start: int
    end: int
    blob: bytes


@dataclass(frozen=True)
class Skip:
    """Why a message has no vector; a permanent one is not tried again."""

    msg_id: int
    text_hash: str
    reason: str
    permanent: bool


@dataclass(frozen=True)
class Coverage:
    """How many messages are worth a vector, have one, and failed for good or for now."""

    embeddable: int
    embedded: int
    failed: int

    @property
    def ratio(self) -> float:
        """Embedded / embeddable, 1.0 when there is nothing to embed."""
        return min(1.0, self.embedded / self.embeddable) if self.embeddable else 1.0


def exists(conn: sqlite3.Connection) -> bool:
    """Tell whether our tables are there."""
    query = "SELECT count(*) FROM sqlite_master WHERE type='table' AND name IN (?, ?, ?, ?, ?)"
    return bool(conn.execute(query, TABLES).fetchone()[0] == len(TABLES))


def _pending_where(layout: Layout, roles: Sequence[str]) -> tuple[list[str], list[object]]:
    clauses, params = Filters(role_filter=roles).where(layout)
    clauses += [
        "m.content IS NOT NULL",
        "NOT EXISTS (SELECT 1 FROM message_embeddings e WHERE e.msg_id = m.id AND e.space_id = ?)",
        "NOT EXISTS (SELECT 1 FROM embedding_skips k WHERE k.msg_id = m.id "
        "AND k.space_id IN (0, ?) AND (k.next_try IS NULL OR k.next_try - ? BETWEEN 0 AND 7200))",
    ]
    return clauses, params


def pending(
    conn: sqlite3.Connection,
    layout: Layout,
    space_id: int | None,
    roles: Sequence[str],
    *,
    above: int = 0,
    below: int | None = None,
    since: float | None = None,
    edited: bool = False,
    limit: int = 100,
    now: float | None = None,
) -> list[PendingMessage]:
    """Return at most *limit* messages without a vector in the space, the newest first.

    ``above`` and ``below`` bound the message id (both exclusive), ``since`` the time of the
    message in seconds since 1970; ``edited`` asks for those of :func:`mark_edited` only.
    Pending is derived from the tables each time.
    """
    clauses, params = _pending_where(layout, roles)
    space = space_id or -1
    params += [space, space, time.time() if now is None else now, above]
    clauses.append("m.id > ?")
    if edited:
        clauses.append(
            "m.id IN (SELECT msg_id FROM embedding_skips WHERE space_id = ? AND text_hash = ?)"
        )
        params += [NO_SPACE, EDITED]
    if below is not None:
        clauses.append("m.id < ?")
        params.append(below)
    if since is not None:
        clauses.append("m.timestamp >= ?")
        params.append(since)
    rows = conn.execute(
        f"SELECT m.id, m.session_id, m.role, m.content FROM messages m "
        f"WHERE {' AND '.join(clauses)} ORDER BY m.id DESC LIMIT ?",
        (*params, limit),
    )
    result = []
    for msg_id, session_id, role, content in rows:
        text = texts.message_text(content)
        result.append(PendingMessage(msg_id, session_id, role, text, texts.text_hash(text)))
    return result


def walk_pending(
    conn: sqlite3.Connection,
    layout: Layout,
    space_id: int | None,
    roles: Sequence[str],
    *,
    since: float | None = None,
) -> Iterator[PendingMessage]:
    """Yield all pending messages, the newest first, those with nothing to embed included."""
    below: int | None = None
    while True:
        rows = pending(conn, layout, space_id, roles, below=below, since=since, limit=500)
        yield from rows
        if not rows:
            return
        below = rows[-1].msg_id


def known(
    conn: sqlite3.Connection, space_id: int, hashes: Iterable[str]
) -> dict[str, list[ChunkVector]]:
    """Return the vectors this space already has for texts of these hashes."""
    result: dict[str, list[ChunkVector]] = {}
    for text_hash in dict.fromkeys(hashes):
        rows = conn.execute(
            "SELECT chunk, chunk_start, chunk_end, embedding FROM message_embeddings "
            "WHERE msg_id = (SELECT msg_id FROM message_embeddings "
            "WHERE space_id = ?1 AND text_hash = ?2 LIMIT 1) AND space_id = ?1 AND text_hash = ?2 "
            "ORDER BY chunk",
            (space_id, text_hash),
        ).fetchall()
        if rows:
            result[text_hash] = [ChunkVector(*row) for row in rows]
    return result


def put(
    conn: sqlite3.Connection, space: Space, message: PendingMessage, chunks: Sequence[ChunkVector]
) -> bool:
    """Store the vectors of one message, replacing older ones of this space.

    Returns False, and stores nothing, when the message is gone or its text has changed.
    """
    row = conn.execute(
        "SELECT session_id, CAST(content AS BLOB) FROM messages WHERE id = ?", (message.msg_id,)
    ).fetchone()
    if row is None or texts.text_hash(texts.message_text(row[1])) != message.text_hash:
        return False
    key = (message.msg_id, space.id)
    conn.execute("DELETE FROM message_embeddings WHERE msg_id = ? AND space_id = ?", key)
    conn.execute("DELETE FROM embedding_skips WHERE msg_id = ? AND space_id IN (0, ?)", key)
    conn.executemany(
        "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
        "created_at, space_id, chunk, chunk_start, chunk_end) VALUES (?,?,?,?,?,?,?,?,?,?)",
        [
            (message.msg_id, row[0], c.blob, message.text_hash, len(c.blob) // 4)
            + (time.time(), space.id, c.chunk, c.start, c.end)
            for c in chunks
        ],
    )
    return True


def skip(conn: sqlite3.Connection, space_id: int, skips: Iterable[Skip], now: float) -> None:
    """Record why messages have no vector.

    The next try of one that is not permanent comes after 1, 4, 16 … minutes; after
    MAX_ATTEMPTS it has become permanent.
    """
    for item in skips:
        key = (item.msg_id, space_id)
        if not conn.execute("SELECT 1 FROM messages WHERE id = ?", key[:1]).fetchone():
            continue
        row = conn.execute(
            "SELECT attempts FROM embedding_skips WHERE msg_id = ? AND space_id = ? "
            "AND text_hash = ?",
            (*key, item.text_hash),
        ).fetchone()
        attempts = 1 + (int(row[0]) if row else 0)
        final = item.permanent or attempts >= MAX_ATTEMPTS
        next_try = None if final else now + 60.0 * 4.0 ** (attempts - 1)
        conn.execute(
            "INSERT OR REPLACE INTO embedding_skips "
            "(msg_id, space_id, text_hash, reason, attempts, next_try) VALUES (?,?,?,?,?,?)",
            (*key, item.text_hash, item.reason, attempts, next_try),
        )


def retry_skips(conn: sqlite3.Connection, space_id: int) -> int:
    """Make failed messages of a space pending again; returns how many."""
    return conn.execute("DELETE FROM embedding_skips WHERE space_id = ?", (space_id,)).rowcount


def forget(conn: sqlite3.Connection, msg_ids: Iterable[int]) -> None:
    """Drop vectors and skips of messages whose text is no longer the one they were made of."""
    for msg_id in msg_ids:
        conn.execute("DELETE FROM message_embeddings WHERE msg_id = ?", (msg_id,))
        conn.execute("DELETE FROM embedding_skips WHERE msg_id = ?", (msg_id,))


def mark_edited(conn: sqlite3.Connection, msg_ids: Iterable[int]) -> None:
    """Remember, beyond a kill, that these messages are to be embedded, history or not."""
    conn.executemany(
        "INSERT OR REPLACE INTO embedding_skips "
        "SELECT id, ?, ?, 'the text changed', 0, 0.0 FROM messages WHERE id = ?",
        [(NO_SPACE, EDITED, msg_id) for msg_id in msg_ids],
    )


def coverage(
    conn: sqlite3.Connection, layout: Layout, space_id: int | None, roles: Sequence[str]
) -> Coverage:
    """Count embeddable, embedded and failed messages (messages, not chunks)."""
    clauses, params = Filters(role_filter=roles).where(layout)
    visible = " AND ".join([*clauses, "m.content IS NOT NULL"])
    space = space_id or -1
    total, nothing, failed, embedded = conn.execute(
        "SELECT count(*), coalesce(sum(none), 0), coalesce(sum(bad), 0), coalesce(sum(good), 0) "
        "FROM (SELECT EXISTS (SELECT 1 FROM embedding_skips k WHERE k.msg_id = m.id "
        "AND k.space_id = 0 AND k.next_try IS NULL) AS none, "
        "EXISTS (SELECT 1 FROM embedding_skips k WHERE k.msg_id = m.id AND k.space_id = ?) AS bad, "
        "EXISTS (SELECT 1 FROM message_embeddings e WHERE e.msg_id = m.id AND e.space_id = ?) "
        f"AS good FROM messages m WHERE {visible})",
        (space, space, *params),
    ).fetchone()
    return Coverage(embeddable=total - nothing, embedded=embedded, failed=failed)


def state(conn: sqlite3.Connection, key: str) -> str | None:
    """Return a recorded value, e.g. the watermark."""
    row = conn.execute("SELECT value FROM embedding_state WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def watermark(conn: sqlite3.Connection) -> int | None:
    """Return the highest id of the history, None where nothing readable was recorded."""
    found = state(conn, "watermark")
    return int(found) if found is not None and found.isdecimal() else None


def set_state(conn: sqlite3.Connection, key: str, value: str) -> None:
    """Record a value under *key*."""
    conn.execute("INSERT OR REPLACE INTO embedding_state VALUES (?, ?)", (key, value))


def skip_reasons(conn: sqlite3.Connection, space_id: int) -> dict[str, int]:
    """Return how many messages of a space failed, by reason."""
    rows = conn.execute(
        "SELECT reason, count(*) FROM embedding_skips WHERE space_id = ? GROUP BY reason",
        (space_id,),
    )
    return {str(reason): int(count) for reason, count in rows}
