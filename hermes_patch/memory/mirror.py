"""Writes of Hermes's own memory, carried over into the notes in the order they were made.

Each is written down first and taken off when it is done, so a server that is down, or a
kill, loses none. What replaces is embedded before what is replaced is retired.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import text as texts
from ..errors import EmbedderUnavailable, HermesPatchError
from . import notes
from .core import Memory, check
from .notes import Note
from .scopes import GLOBAL

ADD, REPLACE, REMOVE, DEMOTE = "add", "replace", "remove", "demote"
_ACTIONS = {
    **{name: name for name in (ADD, REPLACE, REMOVE, DEMOTE)},
    "patch": REPLACE,
    "update": REPLACE,
    "delete": REMOVE,
    "archive": DEMOTE,
    "evict": DEMOTE,
}

Entries = Callable[[], Mapping[str, Sequence[str]] | None]


@dataclass(frozen=True)
class Write:
    """One write. ``old`` is the entry it was about: the whole of it where ``exact``."""

    action: str
    target: str
    text: str = field(repr=False)
    old: str | None = field(default=None, repr=False)
    exact: bool = False


def of(action: str, target: str, content: str, metadata: Mapping[str, Any] | None) -> Write | None:
    """Return what Hermes told, None for what changes nothing."""
    known = _ACTIONS.get(str(action).lower())
    if known is None:
        return None
    more = metadata or {}
    previous, part = more.get("previous_content"), more.get("old_text")
    if known == REMOVE and (more.get("demoted") or more.get("demote")):
        known = DEMOTE
    old = previous or part
    if known in (REMOVE, DEMOTE) and not old:
        old = content or None
    return Write(known, target or "memory", content or "", old, bool(previous))


def enqueue(memory: Memory, writes: Sequence[Write]) -> None:
    """Write down what is to be done; raises sqlite3.Error."""
    rows = [(w.action, w.target, w.text, w.old, int(w.exact)) for w in writes]
    memory.engine.write(
        lambda conn: (
            conn.executemany(
                "INSERT INTO mirror_queue (action, target, text, old, exact) VALUES (?,?,?,?,?)",
                rows,
            )
            and None
        )
    )


def waiting(conn: sqlite3.Connection) -> list[tuple[int, Write]]:
    """Return what is still to be done, the oldest first."""
    rows = conn.execute("SELECT id, action, target, text, old, exact FROM mirror_queue ORDER BY id")
    return [(n, Write(action, *rest)) for n, action, *rest in rows.fetchall()]


def drain(memory: Memory, entries: Entries) -> int:
    """Do what is waiting, in order, and return how many writes were done.

    *entries* gives what stands in Hermes's files now.

    Raises:
        EmbedderError: no vector could be had; that write and those after it still wait.
    """
    with memory.engine.reader() as conn:
        todo = waiting(conn)
    for done, (number, write) in enumerate(todo):
        try:
            _apply(memory, write, entries, number)
        except HermesPatchError as error:
            if isinstance(error, EmbedderUnavailable):
                raise
            memory.engine.guard.note("mirror", error)
            if _is_lasting(error):
                _taken_off(memory, number)
                continue
            return done
    return len(todo)


def _is_lasting(error: HermesPatchError) -> bool:
    """Tell whether the text itself is at fault, so that trying again would be in vain."""
    return type(error) is HermesPatchError


def _taken_off(memory: Memory, number: int) -> None:
    memory.engine.write(
        lambda conn: conn.execute("DELETE FROM mirror_queue WHERE id = ?", (number,)) and None
    )


def _apply(memory: Memory, write: Write, entries: Entries, number: int) -> None:
    if write.action == ADD:
        memory.add(write.text, GLOBAL, target=write.target)
        _taken_off(memory, number)
        return
    new: Note | None = None
    keep = texts.text_hash(check(write.text)) if write.action == REPLACE else ""
    with memory.engine.reader() as conn:
        old = _about(conn, write, keep, entries)
    if write.action == REPLACE:
        added = memory.add(write.text, GLOBAL, target=write.target)
        if not added.vector and added.outcome != "exists":
            # The old one stays until the new one can be found.
            raise EmbedderUnavailable(f"a replaced note waits for its vector: {added.why}")
        new = added.note
    when = memory.clock()

    def change(conn: sqlite3.Connection) -> None:
        for note in old:
            if write.action == DEMOTE:
                notes.set_canonical(conn, note.id, None)
            elif new is not None:
                notes.supersede(conn, note.id, notes.REPLACED, when, new.id)
            else:
                notes.supersede(conn, note.id, notes.FORGOTTEN, when)
        conn.execute("DELETE FROM mirror_queue WHERE id = ?", (number,))

    memory.engine.write(change)


def _about(conn: sqlite3.Connection, write: Write, keep: str, entries: Entries) -> list[Note]:
    """Return the notes a write is about, never more than one unless the files prove it."""
    if write.old is not None:
        whole = notes.by_hash(conn, texts.text_hash(texts.message_text(write.old)), GLOBAL)
        if whole is not None and whole.superseded is None:
            return [] if whole.text_hash == keep else [whole]
        if write.exact:
            return []
    standing = [n for n in notes.canonical(conn, write.target) if n.text_hash != keep]
    if write.old is not None:
        part = [note for note in standing if write.old in note.text]
        if len(part) == 1:
            return part
        standing = part
    # Older versions of Hermes do not tell which entry it was: it is the one that is gone.
    listed = (entries() or {}).get(write.target)
    if listed is None:
        return []
    left = {texts.text_hash(texts.message_text(entry)) for entry in listed}
    gone = [note for note in standing if note.text_hash not in left]
    return gone if len(gone) == 1 else []
