"""The methods that SessionDB gains; names, arguments and keys are those of the guide."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from . import layout, nearest, spaces, store, vectors
from . import text as texts
from .embedders.base import Description
from .engine import Engine
from .errors import VectorError
from .layout import Filters

SNIPPET_CHARS = 300

EngineOf = Callable[[Any], Engine]


def make(engine_of: EngineOf) -> dict[str, Callable[..., Any]]:
    """Return the methods, each a function whose first argument is the SessionDB."""

    def store_embedding(
        self: Any, msg_id: int, session_id: str, embedding: Sequence[float], text: str
    ) -> None:
        """Store the vector of one message; *text* is what was embedded.

        Raises VectorError for a vector that is empty, zero, not finite or of another length
        than the space has; nothing is stored then.
        """
        _store(engine_of(self), msg_id, session_id, embedding, text)

    def search_by_vector(
        self: Any,
        query_vector: Sequence[float],
        top_k: int = 20,
        exclude_session_ids: Sequence[str] | None = None,
        role_filter: Sequence[str] | None = None,
        min_similarity: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return the *top_k* messages nearest to a query vector, best first.

        ``min_similarity`` is a cosine; None means the floor of the space. Keys: ``msg_id,
        session_id, role, content_snippet, similarity, source, model, session_started``.
        """
        filters = Filters(role_filter=role_filter, exclude_session_ids=exclude_session_ids)
        return _search(engine_of(self), query_vector, top_k, filters, min_similarity)

    def get_unembedded_messages(self: Any, limit: int = 100) -> list[dict[str, Any]]:
        """Return messages that still need a vector, the newest first.

        Keys: ``msg_id, session_id, role, content``, the content being the text to embed.
        """
        return _unembedded(engine_of(self), limit)

    def embedding_count(self: Any) -> int:
        """Return how many messages have a vector in the current space."""
        return _count(engine_of(self))

    return {
        function.__name__: function
        for function in (
            store_embedding,
            search_by_vector,
            get_unembedded_messages,
            embedding_count,
        )
    }


def _store(
    engine: Engine, msg_id: int, session_id: str, embedding: Sequence[float], text: str
) -> None:
    settings = engine.settings
    with engine.reader() as conn:
        space = engine.indexer.space(conn)
    blob = vectors.to_blob(embedding, space.dims if space else settings.dimensions)
    whole = texts.message_text(text)
    message = store.PendingMessage(msg_id, session_id, "", whole, texts.text_hash(whole))
    key, description = engine.indexer.key(), engine.embedder.describe()

    def change(conn: Any) -> bool:
        target = space or _new_space(conn, key, description, len(blob) // 4)
        chunk = store.ChunkVector(0, 0, len(whole), blob)
        return store.put(conn, target, message, [chunk])

    if not engine.write(change):
        raise VectorError(
            f"message {msg_id} does not exist or its text is not the one that was embedded; "
            "nothing was stored"
        )


def _new_space(conn: Any, key: str, description: Description, dims: int) -> spaces.Space:
    space_id = spaces.add_space(conn, key, description, dims, None)
    return spaces.Space(space_id, key, description.provider, description.model, dims, None)


def _search(
    engine: Engine,
    query_vector: Sequence[float],
    top_k: int,
    filters: Filters,
    min_similarity: float | None,
) -> list[dict[str, Any]]:
    floor = engine.floor if min_similarity is None else min_similarity
    with engine.reader() as conn:
        space = engine.indexer.space(conn) if store.exists(conn) else None
        if space is None:
            return []
        shape = layout.read(conn)
        found = nearest.nearest(
            conn, space.id, space.dims, query_vector, top_k, floor, filters, shape
        )
        rows = [_row(conn, neighbour) for neighbour in found]
    return [row for row in rows if row is not None]


def _row(conn: Any, neighbour: nearest.Neighbour) -> dict[str, Any] | None:
    row = conn.execute(
        "SELECT m.session_id, m.role, m.content, s.source, s.model, s.started_at "
        "FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id = ?",
        (neighbour.msg_id,),
    ).fetchone()
    text = texts.message_text(row[2]) if row else ""
    if row is None or texts.text_hash(text) != neighbour.text_hash:
        return None
    end = min(neighbour.chunk_end or len(text), neighbour.chunk_start + SNIPPET_CHARS)
    return {
        "msg_id": neighbour.msg_id,
        "session_id": row[0],
        "role": row[1],
        "content_snippet": text[neighbour.chunk_start : end],
        "similarity": neighbour.similarity,
        "source": row[3],
        "model": row[4],
        "session_started": row[5],
    }


def _unembedded(engine: Engine, limit: int) -> list[dict[str, Any]]:
    with engine.reader() as conn:
        if not store.exists(conn):
            return []
        space, shape = engine.indexer.space(conn), layout.read(conn)
        rows = store.walk_pending(conn, shape, space.id if space else None, engine.settings.roles)
        worth = (_pending_row(row) for row in rows if texts.is_embeddable(row.text))
        return list(itertools.islice(worth, max(0, limit)))


def _pending_row(row: store.PendingMessage) -> dict[str, Any]:
    return {
        "msg_id": row.msg_id,
        "session_id": row.session_id,
        "role": row.role,
        "content": row.text,
    }


def _count(engine: Engine) -> int:
    with engine.reader() as conn:
        space = engine.indexer.space(conn) if store.exists(conn) else None
        if space is None:
            return 0
        row = conn.execute(
            "SELECT count(DISTINCT msg_id) FROM message_embeddings WHERE space_id = ?", (space.id,)
        ).fetchone()
    return int(row[0])
