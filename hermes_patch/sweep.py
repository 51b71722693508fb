"""Finds what no longer fits: vectors of another text, and rows of messages that are gone.

Hermes edits and deletes messages through many doors, other programs too, and no trigger
tells us. Reading and mending are separate: reads need no lock, and most find nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import store
from . import text as texts

TABLES = ("message_embeddings", "embedding_skips")
STEP = 1000
"""Message ids looked at by one step."""


@dataclass
class Finding:
    """Ids of messages whose text changed, of messages that are gone, and the last one seen."""

    edited: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    last: int | None = None

    def __bool__(self) -> bool:
        return bool(self.edited or self.gone)

    def add(self, other: Finding) -> None:
        """Take over what *other* found, but not its ``last``."""
        self.edited |= other.edited
        self.gone |= other.gone


def recent(conn: sqlite3.Connection, limit: int) -> Finding:
    """Look at the *limit* newest message ids of each of our tables."""
    found = Finding()
    for table in TABLES:
        newest = f"SELECT DISTINCT msg_id FROM {table} ORDER BY msg_id DESC"
        _look(conn, table, newest, limit, found)
    return found


def step(conn: sqlite3.Connection, table: str, after: int, limit: int = STEP) -> Finding:
    """Look at the next *limit* message ids of a table above *after*.

    ``last`` is None when there are no more.
    """
    found = Finding()
    ids = f"SELECT DISTINCT msg_id FROM {table} WHERE msg_id > {int(after)} ORDER BY msg_id"
    _look(conn, table, ids, limit, found)
    return found


def _look(conn: sqlite3.Connection, table: str, ids: str, limit: int, found: Finding) -> None:
    rows = conn.execute(
        f"SELECT e.msg_id, e.text_hash, m.id, m.content FROM {table} e "
        f"LEFT JOIN messages m ON m.id = e.msg_id WHERE e.msg_id IN ({ids} LIMIT ?) "
        "GROUP BY e.msg_id, e.text_hash",
        (limit,),
    )
    seen: set[int] = set()
    for msg_id, text_hash, still_there, content in rows:
        seen.add(msg_id)
        if still_there is None:
            found.gone.add(msg_id)
        elif text_hash not in (store.EDITED, texts.text_hash(texts.message_text(content))):
            found.edited.add(msg_id)
    found.last = max(seen) if len(seen) == limit else None


def everything(conn: sqlite3.Connection) -> Finding:
    """Look at all rows of both tables: linear in the size of the history."""
    found = Finding()
    for table in TABLES:
        after: int | None = 0
        while after is not None:
            part = step(conn, table, after)
            found.add(part)
            after = part.last
    return found


def mend(conn: sqlite3.Connection, found: Finding) -> None:
    """Drop what does not fit; edited messages become pending, also those of the history.

    *found* is looked at again, in the transaction that *conn* is in: what was embedded anew
    meanwhile is not to be paid for twice.
    """
    ids = sorted({int(msg_id) for msg_id in (*found.gone, *found.edited)})
    if not ids:
        return
    named = f"SELECT column1 FROM (VALUES {','.join(f'({msg_id})' for msg_id in ids)})"
    now = Finding()
    for table in TABLES:
        _look(conn, table, named, len(ids), now)
    store.forget(conn, now.gone)
    drop(conn, now.edited)


def drop(conn: sqlite3.Connection, msg_ids: Iterable[int]) -> None:
    """Drop what there is of these messages, fitting or not, and make them pending."""
    ids = list(msg_ids)
    store.forget(conn, ids)
    store.mark_edited(conn, ids)


def stale(conn: sqlite3.Connection, after: int, limit: int) -> tuple[list[int], int | None]:
    """Return the edited messages among the next *limit* embedded ones, and the last id seen."""
    found = step(conn, "message_embeddings", after, limit)
    return sorted(found.edited), found.last


def orphans(conn: sqlite3.Connection) -> int:
    """Count the messages that are gone and still have rows of ours."""
    gone = " UNION ".join(_gone(table) for table in TABLES)
    return int(conn.execute(f"SELECT count(*) FROM ({gone})").fetchone()[0])


def remove_orphans(conn: sqlite3.Connection, limit: int = STEP) -> int:
    """Drop the rows of at most *limit* messages that are gone; returns how many messages."""
    gone = " UNION ".join(_gone(table) for table in TABLES)
    ids = [int(row[0]) for row in conn.execute(f"SELECT msg_id FROM ({gone}) LIMIT ?", (limit,))]
    store.forget(conn, ids)
    return len(ids)


def _gone(table: str) -> str:
    return (
        f"SELECT e.msg_id FROM {table} e LEFT JOIN messages m ON m.id = e.msg_id WHERE m.id IS NULL"
    )


def batches(found: Finding, size: int = STEP) -> Iterable[Finding]:
    """Cut a finding into parts of at most *size* messages, so that every write is short."""
    for name in ("gone", "edited"):
        ids = sorted(getattr(found, name))
        for start in range(0, len(ids), size):
            part = Finding()
            setattr(part, name, set(ids[start : start + size]))
            yield part
