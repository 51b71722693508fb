"""What a state.db looks like: which columns and search tables this one has.

Every Hermes since schema 6 has ``messages`` and ``sessions``; columns and full-text tables
came later, one by one. Features are read from the file, never from a version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """The parts of a state.db that differ between versions of Hermes.

    ``word_table`` and ``trigram_table`` are the names of FTS5 tables, or None.
    """

    message_columns: frozenset[str]
    session_columns: frozenset[str]
    word_table: str | None
    trigram_table: str | None
    schema_version: int | None

    def visibility(self, include_inactive: bool = False) -> list[str]:
        """Return the predicates on ``m`` that the host's own search applies."""
        clauses = []
        if not include_inactive and "active" in self.message_columns:
            if "compacted" in self.message_columns:
                clauses.append("(m.active = 1 OR m.compacted = 1)")
            else:
                clauses.append("m.active = 1")
        if "display_kind" in self.message_columns:
            clauses.append("COALESCE(m.display_kind, '') <> 'hidden'")
        return clauses


@dataclass(frozen=True)
class Filters:
    """What a search was narrowed to; the names are those of Hermes's ``search_messages``."""

    source_filter: Sequence[str] | None = None
    exclude_sources: Sequence[str] | None = None
    role_filter: Sequence[str] | None = None
    include_inactive: bool = False
    after_ts: float | None = None
    before_ts: float | None = None
    exclude_session_ids: Sequence[str] | None = None

    def where(self, layout: Layout) -> tuple[list[str], list[object]]:
        """Return predicates over ``messages m JOIN sessions s`` and their parameters."""
        clauses = layout.visibility(self.include_inactive)
        params: list[object] = []
        lists = (
            ("s.source IN", self.source_filter, True),
            ("s.source NOT IN", self.exclude_sources, True),
            ("m.role IN", self.role_filter, False),
            ("m.session_id NOT IN", self.exclude_session_ids, False),
        )
        for head, values, even_if_empty in lists:
            if values is not None and (even_if_empty or values):
                clauses.append(f"{head} ({','.join('?' * len(values))})")
                params.extend(values)
        if self.after_ts is not None:
            clauses.append("s.started_at >= ?")
            params.append(self.after_ts)
        if self.before_ts is not None:
            clauses.append("s.started_at < ?")
            params.append(self.before_ts)
        return clauses, params


def columns(conn: sqlite3.Connection, table: str) -> frozenset[str]:
    """Return the column names of *table*, empty when it does not exist."""
    return frozenset(str(row[1]) for row in conn.execute(f"PRAGMA table_info({table})"))


def read(conn: sqlite3.Connection) -> Layout:
    """Read the layout of the state.db behind *conn*."""
    names = {
        str(row[0]) for row in conn.execute("SELECT name FROM sqlite_master WHERE type='table'")
    }
    version = None
    if "schema_version" in names:
        row = conn.execute("SELECT version FROM schema_version LIMIT 1").fetchone()
        version = int(row[0]) if row else None
    return Layout(
        message_columns=columns(conn, "messages"),
        session_columns=columns(conn, "sessions"),
        word_table="messages_fts" if "messages_fts" in names else None,
        trigram_table="messages_fts_trigram" if "messages_fts_trigram" in names else None,
        schema_version=version,
    )
