"""The k nearest vectors: exact cosine over every visible vector of one space.

Two tiers, the same results: sqlite-vec where our own connection can load it, and pure Python
always. A connection that was prepared by :func:`accelerate` uses the first.
"""

from __future__ import annotations

import heapq
import importlib.util
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path

from . import vectors
from .errors import BudgetExceeded
from .layout import Filters, Layout

SQLITE_VEC = "sqlite-vec"
PURE_PYTHON = "python"

Row = tuple[int, str, int, int, float, str]
"""The fields of a Neighbour, which there are too many of during a scan to be objects."""
SLICE = 1000
"""How many vectors the Python tier reads at once."""


def _sum_of_products(p: Sequence[float], q: Sequence[float]) -> float:
    return float(sum(map(mul, p, q)))


dot: Callable[[Sequence[float], Sequence[float]], float] = getattr(
    math, "sumprod", _sum_of_products
)
"""The product of two vectors; Python 3.12 and later have it in C, twice as fast."""
LONGEST = 1.001
"""More than the product of two unit vectors: from a row that is none, or holds Inf."""


@dataclass(frozen=True)
class Neighbour:
    """A message near the query: its best chunk (character offsets) and cosine similarity."""

    msg_id: int
    session_id: str
    chunk_start: int
    chunk_end: int
    similarity: float
    text_hash: str


def find_library(vendor: Path | None = None) -> str | None:
    """Return the path of the sqlite-vec library without importing its package, or None."""
    folders = [vendor / "sqlite_vec"] if vendor is not None else []
    spec = importlib.util.find_spec("sqlite_vec")
    if spec is not None and spec.submodule_search_locations:
        folders += [Path(folder) for folder in spec.submodule_search_locations]
    for folder in folders:
        for name in ("vec0.so", "vec0.dylib", "vec0.dll"):
            if (folder / name).is_file():
                return str(folder / "vec0")
    return None


def accelerate(conn: sqlite3.Connection, library: str | None) -> str:
    """Load sqlite-vec into *conn*, a connection of ours, and return the tier it will use."""
    if library is None or not hasattr(conn, "enable_load_extension"):
        return PURE_PYTHON
    try:
        conn.enable_load_extension(True)
        try:
            conn.load_extension(library)
        finally:
            conn.enable_load_extension(False)
    except sqlite3.Error:
        return PURE_PYTHON
    return SQLITE_VEC


def tier(conn: sqlite3.Connection) -> str:
    """Return which tier *conn* uses."""
    row = conn.execute(
        "SELECT 1 FROM pragma_function_list WHERE name = 'vec_distance_cosine' LIMIT 1"
    ).fetchone()
    return SQLITE_VEC if row else PURE_PYTHON


def check_time(deadline: float | None) -> None:
    """Raise BudgetExceeded after *deadline*, a value of ``time.monotonic()``."""
    if deadline is not None and time.monotonic() > deadline:
        raise BudgetExceeded("the time of the search was over")


def nearest(
    conn: sqlite3.Connection,
    space_id: int,
    dims: int,
    query: Sequence[float],
    k: int,
    floor: float,
    filters: Filters,
    layout: Layout,
    deadline: float | None = None,
) -> list[Neighbour]:
    """Return the *k* messages nearest to *query*, best first, one row per message.

    ``query`` is a vector of *dims* numbers; messages below the cosine *floor* are left out.
    Ties are broken by message id, the newest first. Only vectors of the space, of the right
    length and of messages that pass *filters* are compared.

    Raises:
        VectorError: the query is not a vector of *dims* finite numbers.
        BudgetExceeded: after *deadline*, a value of ``time.monotonic()``.
    """
    unit = vectors.normalise(query, dims)
    if k <= 0:
        return []
    joined, params = _from_where(space_id, dims, filters, layout)
    if tier(conn) == SQLITE_VEC:
        found = _scan_sqlite_vec(conn, joined, params, unit, floor, k)
    else:
        found = _scan_python(conn, joined, params, unit, floor, k, deadline)
    return [Neighbour(*row) for row in found]


def _from_where(
    space_id: int, dims: int, filters: Filters, layout: Layout
) -> tuple[str, list[object]]:
    clauses, params = filters.where(layout)
    clauses = ["e.space_id = ?", "length(e.embedding) = ?", *clauses]
    joined = (
        "FROM message_embeddings e JOIN messages m ON m.id = e.msg_id "
        f"JOIN sessions s ON s.id = m.session_id WHERE {' AND '.join(clauses)}"
    )
    return joined, [space_id, dims * vectors.BYTES_PER_DIMENSION, *params]


def _scan_sqlite_vec(
    conn: sqlite3.Connection,
    joined: str,
    params: list[object],
    unit: list[float],
    floor: float,
    k: int,
) -> list[Row]:
    # The distance stays out of WHERE: there SQLite would compute it twice. NULL comes from a
    # zero or NaN vector. SQLite keeps no more than the limit while it sorts.
    limit = k + k // 2
    while True:
        rows = conn.execute(
            "SELECT * FROM (SELECT e.msg_id, m.session_id, e.chunk_start, e.chunk_end, "
            f"1.0 - vec_distance_cosine(e.embedding, ?) AS similarity, e.text_hash {joined} "
            "LIMIT -1) WHERE similarity >= ? ORDER BY similarity DESC, msg_id DESC LIMIT ?",
            (vectors.pack(unit), *params, floor, limit),
        ).fetchall()
        best: dict[int, Row] = {}
        for row in rows:
            best.setdefault(row[0], row)
        if len(best) >= k or len(rows) < limit:
            return list(best.values())[:k]
        limit *= 4  # messages of many chunks took the places of others


def _scan_python(
    conn: sqlite3.Connection,
    joined: str,
    params: list[object],
    unit: list[float],
    floor: float,
    k: int,
    deadline: float | None,
) -> list[Row]:
    # Read in slices, so that no read lock is held while Python computes: in DELETE mode an
    # append would wait for it. The plus keeps SQLite from sorting all rows for every slice.
    joined = joined.replace("e.space_id =", "+e.space_id =")
    last = 0
    best: dict[int, Row] = {}
    while rows := conn.execute(
        "SELECT e.id, e.embedding, e.msg_id, m.session_id, e.chunk_start, e.chunk_end, "
        f"e.text_hash {joined} AND e.id > ? ORDER BY e.id LIMIT {SLICE}",
        [*params, last],
    ).fetchall():
        check_time(deadline)
        last = rows[-1][0]
        for _, blob, msg_id, session_id, start, end, text_hash in rows:
            similarity = dot(unit, vectors.unpack(blob))
            if floor <= similarity <= LONGEST:
                kept = best.get(msg_id)
                if kept is None or similarity > kept[4]:
                    best[msg_id] = (msg_id, session_id, start, end, similarity, text_hash)
    return heapq.nsmallest(k, best.values(), key=lambda row: (-row[4], -row[0]))
