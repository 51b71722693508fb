"""``hermes-patch calibrate``, inside Hermes's Python: the user's messages asked as questions."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import calibration, query, rows, store, vectors
from .. import text as texts
from ..calibration import Passage
from ..embedders import sending
from ..engine import Engine
from ..errors import HermesPatchError
from ..host import Host
from . import read_settings, state_db, vendor_of

QUESTIONS, PASSAGES = 60, 1000
_SHORTEST, _LONGEST = 8, 300  # characters of a message that may stand for a question
_SECONDS = 30.0
_SHUFFLED = "ORDER BY (id * 2654435761) % 4294967296 LIMIT ?"  # the same ones every time


def measure(home: Path) -> dict[str, Any]:
    """Return what :func:`calibration.result` says of the home's messages and model.

    At most QUESTIONS messages of the user are embedded as queries, with whatever embeds there.

    Raises:
        HermesPatchError: too few messages have vectors, or the embedder does not answer.
    """
    read_settings()
    handle = importlib.import_module("hermes_state").SessionDB(db_path=state_db(home))
    host = Host(vendor=vendor_of(home))
    host.install()
    try:
        engine = host.engine_of(handle)
        pairs = calibration.compare(*_sampled(engine))
        return calibration.result(pairs, engine.embedder.describe().model, engine.floor)
    finally:
        host.uninstall()
        handle.close()


def _sampled(engine: Engine) -> tuple[list[Passage], list[Passage]]:
    with engine.reader() as conn:
        space = engine.indexer.space(conn) if store.exists(conn) else None
        if space is None:
            raise HermesPatchError("nothing is embedded yet; run hermes-patch backfill first")
        passages = list(_passages(conn, space.id, space.dims))
        asked = list(_messages(conn))
    print(f"asking {texts.counted(len(asked), 'message')} as questions", file=sys.stderr)
    return [_question(engine, *one) for one in asked], passages


def _passages(conn: sqlite3.Connection, space_id: int, dims: int) -> Iterator[Passage]:
    found = conn.execute(
        "SELECT msg_id, session_id, text_hash, embedding FROM message_embeddings WHERE id IN "
        "(SELECT id FROM message_embeddings WHERE space_id = ? AND length(embedding) = ? "
        f"{_SHUFFLED})",
        (space_id, dims * vectors.BYTES_PER_DIMENSION, PASSAGES),
    ).fetchall()
    roots = rows.roots(conn, {row[0]: row[1] for row in found})
    for msg_id, _, text_hash, blob in found:
        vector = vectors.unpack(blob)
        if abs(vectors.cosine(vector, vector) - 1.0) < 1e-6:  # not so for zero, NaN or Inf
            yield Passage(roots[msg_id], text_hash, vector)


def _messages(conn: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield the lineage and the text of messages that may stand for a question."""
    found = conn.execute(
        "SELECT id, session_id, content FROM messages WHERE role = 'user' "
        f"AND length(content) BETWEEN ? AND ? {_SHUFFLED}",
        (_SHORTEST, _LONGEST, QUESTIONS),
    ).fetchall()
    roots = rows.roots(conn, {row[0]: row[1] for row in found})
    for msg_id, _, content in found:
        text = texts.message_text(content)
        if texts.is_embeddable(text) and query.plain_text(text):
            yield roots[msg_id], text


def _question(engine: Engine, lineage: str, text: str) -> Passage:
    safe = sending.query(query.plain_text(text), engine.settings)
    answer = engine.query_vector(safe, _SECONDS)
    if answer.vector is None:
        raise HermesPatchError(f"no vector for a message: {answer.reason}")
    return Passage(lineage, texts.text_hash(text), answer.vector)
