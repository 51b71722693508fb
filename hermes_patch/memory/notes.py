"""All SQL on the notes. Functions that write are called inside one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import store
from ..spaces import Space
from ..store import ChunkVector

_FIELDS = (
    "id, text, text_hash, scope, created, superseded, superseded_by, reason, canonical, target"
)
FORGOTTEN, REPLACED, DUPLICATE, OBSOLETE = "forgotten", "replaced", "duplicate", "obsolete"


@dataclass(frozen=True)
class Note:
    """One note. ``superseded`` is when it became a tombstone, None for a note that is live.

    ``canonical`` notes stand in Hermes's own ``target``, ``memory`` or ``user``.
    """

    id: int
    text: str = field(repr=False)
    text_hash: str
    scope: str
    created: float
    superseded: float | None = None
    superseded_by: int | None = None
    reason: str | None = None
    canonical: bool = False
    target: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what may be shown of the note, in types that ``json.dumps`` takes."""
        shown: dict[str, Any] = {
            "id": self.id,
            "text": self.text,
            "scope": self.scope,
            "created": self.created,
            "canonical": self.canonical,
        }
        if self.target:
            shown["target"] = self.target
        if self.superseded is not None:
            shown |= {"superseded": self.superseded, "reason": self.reason}
            if self.superseded_by is not None:
                shown["superseded_by"] = self.superseded_by
        return shown


def _note(row: Sequence[Any]) -> Note:
    made = Note(*row)
    return replace(made, canonical=bool(made.canonical))


def _select(conn: sqlite3.Connection, where: str, params: Sequence[object]) -> list[Note]:
    rows = conn.execute(f"SELECT {_FIELDS} FROM notes WHERE {where}", params)
    return [_note(row) for row in rows.fetchall()]


def by_ids(conn: sqlite3.Connection, ids: Iterable[int]) -> dict[int, Note]:
    """Return the notes of *ids*, tombstones included."""
    wanted = list(ids)
    found: dict[int, Note] = {}
    for at in range(0, len(wanted), 500):
        some = wanted[at : at + 500]
        for note in _select(conn, f"id IN ({','.join('?' * len(some))})", some):
            found[note.id] = note
    return found


def by_hash(conn: sqlite3.Connection, text_hash: str, scope: str) -> Note | None:
    """Return the note with that very text in *scope*, be it a tombstone, None for none."""
    found = _select(conn, "text_hash = ? AND scope = ?", (text_hash, scope))
    return found[0] if found else None


def live(
    conn: sqlite3.Connection,
    scopes: Sequence[str] | None = None,
    *,
    tombstones: bool = False,
    limit: int = -1,
    offset: int = 0,
) -> list[Note]:
    """Return the notes of *scopes* (all for None), the newest first."""
    where, params = ["1"], list[object]()
    if scopes is not None:
        where.append(f"scope IN ({','.join('?' * len(scopes))})")
        params += scopes
    if not tombstones:
        where.append("superseded IS NULL")
    order = f"{' AND '.join(where)} ORDER BY id DESC LIMIT ? OFFSET ?"
    return _select(conn, order, (*params, limit, offset))


def canonical(conn: sqlite3.Connection, target: str | None = None) -> list[Note]:
    """Return the live notes that stand in Hermes's own files (*target* alone if given)."""
    where = "canonical = 1 AND superseded IS NULL"
    if target is None:
        return _select(conn, where, ())
    return _select(conn, f"{where} AND target = ?", (target,))


def insert(
    conn: sqlite3.Connection, text: str, text_hash: str, scope: str, when: float
) -> tuple[Note, str]:
    """Have a live note of that text in *scope*; return it, and what that took.

    That is ``added``, ``revived`` (it was a tombstone) or ``exists``.
    """
    before = by_hash(conn, text_hash, scope)
    if before is not None and before.superseded is None:
        return before, "exists"
    if before is not None:
        conn.execute(
            "UPDATE notes SET superseded = NULL, superseded_by = NULL, reason = NULL, created = ? "
            "WHERE id = ?",
            (when, before.id),
        )
        outcome = "revived"
    else:
        conn.execute("INSERT OR IGNORE INTO scopes VALUES (?)", (scope,))
        conn.execute(
            "INSERT INTO notes (text, text_hash, scope, created) VALUES (?, ?, ?, ?)",
            (text, text_hash, scope, when),
        )
        outcome = "added"
    made = by_hash(conn, text_hash, scope)
    assert made is not None
    return made, outcome


def put_vectors(
    conn: sqlite3.Connection, space: Space, note: Note, chunks: Sequence[ChunkVector]
) -> None:
    """Store the vectors of a note, replacing older ones of this space."""
    message = store.PendingMessage(note.id, note.scope, "user", note.text, note.text_hash)
    store.put(conn, space, message, chunks)


def supersede(
    conn: sqlite3.Connection, note_id: int, reason: str, when: float, by: int | None = None
) -> bool:
    """Make a live note a tombstone; False when it is none."""
    done = conn.execute(
        "UPDATE notes SET superseded = ?, superseded_by = ?, reason = ?, canonical = 0 "
        "WHERE id = ? AND superseded IS NULL",
        (when, by, reason, note_id),
    )
    return done.rowcount == 1


def set_canonical(conn: sqlite3.Connection, note_id: int, target: str | None) -> None:
    """Say that a note stands in Hermes's *target*, None that it no longer does."""
    conn.execute(
        "UPDATE notes SET canonical = ?, target = ? WHERE id = ?",
        (int(target is not None), target, note_id),
    )


def collect(conn: sqlite3.Connection, before: float) -> int:
    """Delete tombstones older than *before* with their vectors; return how many."""
    old = "SELECT id FROM notes WHERE superseded IS NOT NULL AND superseded < ?"
    for table in ("message_embeddings", "embedding_skips"):
        conn.execute(f"DELETE FROM {table} WHERE msg_id IN ({old})", (before,))
    return conn.execute(f"DELETE FROM notes WHERE id IN ({old})", (before,)).rowcount


def counts(conn: sqlite3.Connection, space_id: int | None) -> dict[str, int]:
    """Count live and superseded notes, and those with a vector of the space or another."""
    has = "EXISTS (SELECT 1 FROM message_embeddings e WHERE e.msg_id = n.id AND e.space_id {} ?)"
    row = conn.execute(
        "SELECT coalesce(sum(superseded IS NULL), 0), coalesce(sum(superseded IS NOT NULL), 0), "
        f"coalesce(sum(superseded IS NULL AND {has.format('=')}), 0), "
        f"coalesce(sum(superseded IS NULL AND NOT {has.format('=')} AND {has.format('<>')}), 0), "
        "coalesce(sum(superseded IS NULL AND canonical), 0) FROM notes n",
        (space_id or -1,) * 3,
    ).fetchone()
    names = ("notes", "superseded", "embedded", "of_another_model", "canonical")
    return dict(zip(names, map(int, row), strict=True))
