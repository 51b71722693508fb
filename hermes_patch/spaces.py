"""Spaces: which vectors may be compared with which.

A space is made by one provider, model, engine, number of dimensions, pair of prefixes and way
of chunking. The engine cannot be asked for its name, so a probe sentence stands for it:
another vector for the same sentence is another engine.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from . import text as texts
from . import vectors
from .embedders.base import PROBE_TEXT, Description, Embedder
from .errors import BadResponse

T = TypeVar("T")

GUIDE_KEY = "guide"
"""``settings_key`` of vectors that were made by hand, before us."""
SAME_ENGINE = 0.99
"""Least cosine of two probe vectors made by the same engine."""


@dataclass(frozen=True)
class Space:
    """A set of comparable vectors; ``probe`` is the unit vector of the probe sentence."""

    id: int
    settings_key: str
    provider: str
    model: str
    dims: int
    probe: Sequence[float] | None


class Database(Protocol):
    """How the indexer reaches a state.db."""

    def reader(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a short-lived read-only connection."""

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run *change* in one write transaction of the host's; it may be run again."""


def settings_key(description: Description, max_tokens: int) -> str:
    """Return the fingerprint of everything but the probe that decides a space."""
    parts = [
        description.provider,
        description.model,
        description.dims,
        description.document_prefix,
        description.query_prefix,
        sorted(description.extra.items()),
        max_tokens,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def find(conn: sqlite3.Connection, key: str | None = None) -> list[Space]:
    """Return the spaces of *key* (all of them for None), the newest first."""
    where, params = ("WHERE settings_key = ?", (key,)) if key is not None else ("", ())
    rows = conn.execute(
        "SELECT id, settings_key, provider, model, dims, probe FROM embedding_spaces "
        f"{where} ORDER BY id DESC",
        params,
    )
    return [
        Space(row[0], row[1], row[2], row[3], row[4], _probe(row[5], row[4]))
        for row in rows.fetchall()
    ]


def _probe(blob: object, dims: int) -> Sequence[float] | None:
    """Return the probe vector, None where there is none that could be compared."""
    if not isinstance(blob, bytes) or len(blob) != dims * vectors.BYTES_PER_DIMENSION:
        return None
    return vectors.unpack(blob)


def has(conn: sqlite3.Connection, space: Space) -> bool:
    """Tell whether this database knows *space* by the same id, settings and probe."""
    row = conn.execute(
        "SELECT settings_key, probe FROM embedding_spaces WHERE id = ?", (space.id,)
    ).fetchone()
    probe = None if space.probe is None else vectors.pack(space.probe)
    return row is not None and tuple(row) == (space.settings_key, probe)


def add_space(
    conn: sqlite3.Connection, key: str, description: Description, dims: int, probe: bytes | None
) -> int:
    """Record a new space and return its id; the same key and probe give the same space."""
    found = conn.execute(
        "SELECT id FROM embedding_spaces WHERE settings_key = ? AND probe IS ?", (key, probe)
    ).fetchone()
    if found:
        return int(found[0])
    cursor = conn.execute(
        "INSERT INTO embedding_spaces (settings_key, provider, model, dims, probe, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (key, description.provider, description.model, dims, probe, time.time()),
    )
    return int(cursor.lastrowid or 0)


def claim_space(
    conn: sqlite3.Connection, space_id: int, key: str, description: Description, probe: bytes
) -> None:
    """Give a space whose maker was unknown to the embedder that reproduced its vectors."""
    conn.execute(
        "UPDATE embedding_spaces SET settings_key = ?, provider = ?, model = ?, probe = ? "
        "WHERE id = ? AND probe IS NULL",
        (key, description.provider, description.model, probe, space_id),
    )


def sample(conn: sqlite3.Connection, space_id: int) -> tuple[str, Sequence[float]] | None:
    """Return the text and vector of one short message of a space, None when it is empty."""
    rows = conn.execute(
        "SELECT m.content, e.embedding FROM message_embeddings e "
        "JOIN messages m ON m.id = e.msg_id WHERE e.space_id = ? AND e.chunk_end < 1000 "
        "ORDER BY e.id DESC LIMIT 20",
        (space_id,),
    )
    for content, blob in rows.fetchall():
        text = texts.message_text(content)
        if texts.is_embeddable(text):
            return text, vectors.unpack(blob)
    return None


def verify(database: Database, embedder: Embedder, key: str) -> Space:
    """Find or make the space whose probe vector is the one the embedder gives now.

    Sends the probe sentence; where vectors of an unknown maker may be ours, one text more.

    Raises:
        EmbedderError: the probe got no vector.
    """
    item = embedder.embed_documents([PROBE_TEXT])[0]
    if item.vector is None:
        raise BadResponse(f"the probe sentence got no vector: {item.reason}")
    probe = vectors.to_blob(item.vector)
    with database.reader() as conn:
        candidates = [*find(conn, key), *find(conn, GUIDE_KEY)]
        same = next((s for s in candidates if matches(s, item.vector)), None)
        unknown = [
            (space, sample(conn, space.id))
            for space in candidates
            if space.probe is None and space.dims == len(item.vector)
        ]
    if same is not None:
        return same
    claimed = next((space for space, example in unknown if _reproduces(embedder, example)), None)
    description = embedder.describe()

    def change(conn: sqlite3.Connection) -> int:
        if claimed is None:
            return add_space(conn, key, description, len(probe) // 4, probe)
        claim_space(conn, claimed.id, key, description, probe)
        return claimed.id

    made = database.write(change)
    with database.reader() as conn:
        return next(space for space in find(conn, key) if space.id == made)


def matches(space: Space, probe: Sequence[float]) -> bool:
    """Tell whether an engine that gives *probe* for the probe sentence made this space."""
    return (
        space.probe is not None
        and space.dims == len(probe)
        and vectors.cosine(space.probe, probe) >= SAME_ENGINE
    )


def _reproduces(embedder: Embedder, example: tuple[str, Sequence[float]] | None) -> bool:
    """Tell whether this embedder gives the vector that somebody stored for a text."""
    if example is None:
        return False
    text, vector = example
    item = embedder.embed_documents([text])[0]
    return item.vector is not None and vectors.cosine(item.vector, vector) >= SAME_ENGINE
