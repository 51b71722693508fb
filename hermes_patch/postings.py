"""Which messages contain a unit, asked of the host's full-text tables of any version.

Words come from ``messages_fts``. Pairs of CJK characters come from the trigram table, whose
vocabulary is read through a temporary view of our own connection; without one, from a scan
of the newest messages. Nothing is ever created in the host's file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from .layout import Layout
from .units import Unit

CAP = 5000
"""The most messages looked at for one unit; a unit found that often says little anyway."""

SCANNED = 20_000
"""How many of the newest messages a scan reads where no table can answer."""

_COUNTED = 200_000
_VOCABULARY = "hermes_patch_trigrams"
_LAST = "\U0010ffff"


def total(conn: sqlite3.Connection) -> int:
    """Return the number of messages, at most 200,000 (only its logarithm matters)."""
    query = f"SELECT count(*) FROM (SELECT 1 FROM messages LIMIT {_COUNTED})"
    return int(conn.execute(query).fetchone()[0])


def find(
    conn: sqlite3.Connection, layout: Layout, units: Sequence[Unit], phrases: Sequence[str]
) -> dict[Unit, set[int]]:
    """Return the ids of messages that may contain each unit, at most :data:`CAP` of each.

    ``phrases`` are the query's CJK runs, for the trigram table where its vocabulary cannot
    be read. The ids are candidates: filters and exact spelling are not looked at.

    Raises:
        sqlite3.OperationalError: interrupted.
    """
    words = [unit for unit in units if unit.is_word]
    pairs = [unit for unit in units if not unit.is_word]
    found: dict[Unit, set[int]] = {}
    unanswered: list[Unit] = []
    for unit in words:
        ids = _words(conn, layout, unit)
        if ids is None:
            unanswered.append(unit)
        else:
            found[unit] = ids
    if pairs and layout.trigram_table and _open_vocabulary(conn, layout.trigram_table):
        found.update((unit, _pairs(conn, unit.start)) for unit in pairs)
    elif pairs and layout.trigram_table:
        found.update(_pairs_by_phrase(conn, layout.trigram_table, pairs, phrases))
    else:
        unanswered += pairs
    if unanswered:
        found.update(_scan(conn, unanswered))
    return found


def _words(conn: sqlite3.Connection, layout: Layout, unit: Unit) -> set[int] | None:
    if layout.word_table is None:
        return None
    star = "*" if unit.is_prefix else ""
    ids = _match(conn, layout.word_table, f'"{unit.start}"{star}')
    if not ids and layout.trigram_table and len(unit.start) >= 3:
        # A word written next to Chinese without a blank is no word of its own to unicode61.
        ids = _match(conn, layout.trigram_table, f'"{unit.start}"')
    return ids


def _match(conn: sqlite3.Connection, table: str, expression: str) -> set[int]:
    rows = conn.execute(
        f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rowid DESC LIMIT {CAP}",
        (expression,),
    )
    return {row[0] for row in rows}


def _open_vocabulary(conn: sqlite3.Connection, table: str) -> bool:
    """Make the trigram table's vocabulary readable; False where this SQLite cannot."""
    guarded = bool(conn.execute("PRAGMA query_only").fetchone()[0])
    try:
        # query_only forbids even a temporary table, which lives in this connection alone.
        conn.execute("PRAGMA query_only = OFF")
        conn.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{_VOCABULARY} "
            f"USING fts5vocab(main, {table}, instance)"
        )
        conn.execute(f"SELECT 1 FROM temp.{_VOCABULARY} LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise
        return False
    finally:
        conn.execute(f"PRAGMA query_only = {int(guarded)}")
    return True


def _pairs(conn: sqlite3.Connection, pair: str) -> set[int]:
    """Return messages with a trigram that begins with *pair*: all but those ending in it."""
    rows = conn.execute(
        f"SELECT DISTINCT doc FROM temp.{_VOCABULARY} WHERE term >= ? AND term < ? LIMIT {CAP}",
        (pair, pair + _LAST),
    )
    return {row[0] for row in rows}


def _pairs_by_phrase(
    conn: sqlite3.Connection, table: str, pairs: Sequence[Unit], phrases: Sequence[str]
) -> dict[Unit, set[int]]:
    triples = dict.fromkeys(run[i : i + 3] for run in phrases for i in range(len(run) - 2))
    hits = {triple: _match(conn, table, f'"{triple}"') for triple in list(triples)[:64]}
    lonely = [unit for unit in pairs if not any(unit.start in triple for triple in hits)]
    found: dict[Unit, set[int]] = {unit: set() for unit in pairs}
    for unit in pairs:
        for triple, ids in hits.items():
            if unit.start in triple:
                found[unit] |= ids
    if lonely:
        found.update(_scan(conn, lonely))
    return found


def _scan(conn: sqlite3.Connection, units: Sequence[Unit]) -> dict[Unit, set[int]]:
    """Read the newest messages and test every unit on each."""
    tests = ", ".join(
        "m.content LIKE '%' || ? || '%'" if unit.is_word else "instr(m.content, ?) > 0"
        for unit in units
    )
    rows = conn.execute(
        f"SELECT m.id, {tests} FROM (SELECT id, content FROM messages "
        f"WHERE content IS NOT NULL ORDER BY id DESC LIMIT {SCANNED}) m",
        [unit.start for unit in units],
    )
    found: dict[Unit, set[int]] = {unit: set() for unit in units}
    for msg_id, *flags in rows:
        for unit, flag in zip(units, flags, strict=True):
            if flag:
                found[unit].add(msg_id)
    return found
