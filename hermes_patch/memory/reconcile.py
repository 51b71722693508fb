"""Reconciling: what a current fact made obsolete is superseded, duplicates become one.

Everything is found out first and changed in one transaction last, so a failure half-way
changes nothing.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import store
from .. import text as texts
from ..query import fold
from ..spaces import Space
from ..store import ChunkVector
from . import details, notes
from .core import Memory, Twin, check
from .notes import Note
from .scopes import GLOBAL
from .vectorising import Embedded

Judge = Callable[[str, str], bool]
_MARK = "memory_reconciled"
MOST_AT_ONCE = 500
"""New notes that are compared with the others in one run."""
_WORD = re.compile(r"[a-z]{4,}|[\u3400-\u9fff]{2}")


@dataclass
class Plan:
    """What is to be done. ``proposals`` are pairs that only a judge may decide."""

    new: list[tuple[str, str, Embedded]] = field(default_factory=list)
    canonical: dict[int, str] = field(default_factory=dict)
    demoted: list[int] = field(default_factory=list)
    superseded: dict[int, tuple[str, int | str]] = field(default_factory=dict)
    proposals: list[dict[str, Any]] = field(default_factory=list)
    compared_to: int = 0
    asked: set[tuple[int, int]] = field(default_factory=set)


def run(
    memory: Memory, facts: Mapping[str, Sequence[str]] | None, judge: Judge | None = None
) -> dict[str, Any]:
    """Reconcile the notes with *facts*, Hermes's own entries by target; None leaves those out.

    Returns counts and the ``proposals`` that were not decided.

    Raises:
        EmbedderError: no vectors for the new facts; nothing was changed.
        HostError: the judge could not be asked; nothing was changed.
    """
    plan = Plan()
    space = memory.vectoriser.space(time.monotonic()) if _has_work(memory, facts) else None
    if facts is not None:
        known = _match_facts(memory, facts, plan, space)
        if space is not None:
            _supersede_by_facts(memory, space, plan, known, judge)
    if space is not None:
        _compare_notes(memory, space, plan, judge)
    return _commit(memory, space, plan)


def _has_work(memory: Memory, facts: Mapping[str, Sequence[str]] | None) -> bool:
    with memory.engine.reader() as conn:
        some = conn.execute("SELECT 1 FROM notes WHERE superseded IS NULL LIMIT 1").fetchone()
    return bool(some) or any((facts or {}).values())


def _match_facts(
    memory: Memory, facts: Mapping[str, Sequence[str]], plan: Plan, space: Space | None
) -> list[tuple[str, Embedded, int | str]]:
    """Return (text, vectors, note id or text) of every current fact; embed the new ones at once."""
    current: dict[str, tuple[str, str]] = {}
    for target, entries in facts.items():
        for entry in entries:
            clean = texts.message_text(entry)
            if texts.is_embeddable(clean):
                current.setdefault(texts.text_hash(clean), (check(clean), target))
    found: list[tuple[str, Embedded, int | str]] = []
    fresh: list[tuple[str, str]] = []
    with memory.engine.reader() as conn:
        for note in notes.canonical(conn):
            if note.text_hash not in current and (note.target or "memory") in facts:
                plan.demoted.append(note.id)
        for key, (text, target) in current.items():
            before = notes.by_hash(conn, key, GLOBAL)
            made = _stored(conn, space, before) if before is not None else Embedded()
            if before is None or before.superseded is not None or not made.chunks:
                fresh.append((text, target))
                continue
            if not before.canonical or before.target != target:
                plan.canonical[before.id] = target
            found.append((text, made, before.id))
    if fresh and space is not None:
        embedded = memory.vectoriser.embed([text for text, _ in fresh], space)
        for (text, target), made in zip(fresh, embedded, strict=True):
            plan.new.append((text, target, made))
            found.append((text, made, text))
    return found


def _stored(conn: sqlite3.Connection, space: Space | None, note: Note) -> Embedded:
    if space is None:
        return Embedded()
    rows = conn.execute(
        "SELECT chunk, chunk_start, chunk_end, embedding FROM message_embeddings "
        "WHERE msg_id = ? AND space_id = ? ORDER BY chunk",
        (note.id, space.id),
    ).fetchall()
    return Embedded([ChunkVector(*row) for row in rows])


def _supersede_by_facts(
    memory: Memory,
    space: Space,
    plan: Plan,
    known: Sequence[tuple[str, Embedded, int | str]],
    judge: Judge | None,
) -> None:
    for text, made, by in known:
        for twin in _around(memory, space, made, GLOBAL):
            note = twin.note
            taken = note.id in plan.superseded or note.id in plan.canonical
            if taken or note.id == by or note.text == text:
                continue
            if note.canonical and note.id not in plan.demoted:
                continue
            if twin.similarity >= memory.options.duplicate_threshold or (
                judge is not None and judge(note.text, text)
            ):
                plan.superseded[note.id] = (notes.OBSOLETE, by)


def _around(memory: Memory, space: Space, made: Embedded, scope: str) -> list[Twin]:
    return memory.near(space, made, memory.options.ambiguous_threshold, [scope])


def _compare_notes(memory: Memory, space: Space, plan: Plan, judge: Judge | None) -> None:
    """Compare notes that are new since the last run with all of their scope."""
    with memory.engine.reader() as conn:
        mark = store.state(conn, _MARK)
        after = int(mark) if mark is not None and mark.isdecimal() else 0
        rows = conn.execute(
            "SELECT id FROM notes WHERE superseded IS NULL AND id > ? ORDER BY id LIMIT ?",
            (after, MOST_AT_ONCE),
        ).fetchall()
        new = notes.by_ids(conn, [row[0] for row in rows])
        made = {note.id: _stored(conn, space, note) for note in new.values()}
    plan.compared_to = max(new, default=after)
    for note in new.values():
        if note.id in plan.superseded:
            continue
        for twin in _around(memory, space, made[note.id], note.scope):
            if twin.note.id != note.id and twin.note.id not in plan.superseded:
                _decide(memory, plan, note, twin, judge)
            if note.id in plan.superseded:
                break


def _decide(memory: Memory, plan: Plan, note: Note, twin: Twin, judge: Judge | None) -> None:
    """Of two notes that say the same the older goes, Hermes's own never does."""
    older, newer = sorted((note, twin.note), key=lambda one: (one.canonical, one.created, one.id))
    if older.canonical:
        return
    same = not details.differ(older.text, newer.text)
    if same and twin.similarity >= memory.options.duplicate_threshold:
        plan.superseded[older.id] = (notes.DUPLICATE, newer.id)
    elif (older.id, newer.id) not in plan.asked and _subject(older.text) & _subject(newer.text):
        plan.asked.add((older.id, newer.id))
        if judge is None:
            plan.proposals.append(
                {
                    "older": older.to_json(),
                    "newer": newer.to_json(),
                    "similarity": round(twin.similarity, 3),
                }
            )
        elif judge(older.text, newer.text):
            plan.superseded[older.id] = (notes.OBSOLETE, newer.id)


def _subject(text: str) -> set[str]:
    return set(_WORD.findall(fold(text)))


def _commit(memory: Memory, space: Space | None, plan: Plan) -> dict[str, Any]:
    when = memory.clock()
    old = when - memory.options.keep_days * 86_400.0

    def change(conn: sqlite3.Connection) -> dict[str, Any]:
        ids: dict[str, int] = {}
        for text, target, made in plan.new:
            note, _ = notes.insert(conn, text, texts.text_hash(text), GLOBAL, when)
            notes.set_canonical(conn, note.id, target)
            if space is not None and made.chunks:
                notes.put_vectors(conn, space, note, made.chunks)
            ids[text] = note.id
        for note_id, target in plan.canonical.items():
            notes.set_canonical(conn, note_id, target)
        for note_id in plan.demoted:
            notes.set_canonical(conn, note_id, None)
        done = [
            notes.supersede(conn, note_id, reason, when, ids.get(by) if isinstance(by, str) else by)
            for note_id, (reason, by) in plan.superseded.items()
        ]
        if plan.compared_to:
            store.set_state(conn, _MARK, str(plan.compared_to))
        return {
            "added": len(plan.new),
            "demoted": len(plan.demoted),
            "superseded": sum(done),
            "collected": notes.collect(conn, old),
        }

    return {**memory.engine.write(change), "proposals": plan.proposals}
