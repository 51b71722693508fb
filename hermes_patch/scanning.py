"""Comparing vectors of the table with a query: those that filters leave, or those named.

Two ways with the same results: by sqlite-vec where the connection has it, in Python always.
"""

from __future__ import annotations

import importlib.util
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path
from typing import NamedTuple

from . import vectors
from .errors import BudgetExceeded
from .layout import Filters, Layout

SQLITE_VEC = "sqlite-vec"
PURE_PYTHON = "python"

SLICE = 1000
"""How many vectors the Python way reads at once."""
IDS_AT_ONCE = 100
LONGEST = 1.001
"""More than the product of two unit vectors: from a row that is none, or holds Inf."""
SAMPLE = 32
"""So many rows, spread over the table, tell how many of all pass the filters."""
MMAP_BYTES = 2 << 30
_FIELDS = "e.id, e.msg_id, m.session_id, e.chunk_start, e.chunk_end, e.text_hash, e.created_at"


class Row(NamedTuple):
    """A vector of the table and its similarity to the query; offsets are characters."""

    id: int
    msg_id: int
    session_id: str
    chunk_start: int
    chunk_end: int
    text_hash: str
    made: float
    similarity: float


def _sum_of_products(p: Sequence[float], q: Sequence[float]) -> float:
    return float(sum(map(mul, p, q)))


dot: Callable[[Sequence[float], Sequence[float]], float] = getattr(
    math, "sumprod", _sum_of_products
)
"""The product of two vectors; Python 3.12 and later have it in C, twice as fast."""


def check_time(deadline: float | None) -> None:
    """Raise BudgetExceeded after *deadline*, a value of ``time.monotonic()``."""
    if deadline is not None and time.monotonic() > deadline:
        raise BudgetExceeded("the time of the search was over")


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
    """Return which way *conn* compares."""
    row = conn.execute(
        "SELECT 1 FROM pragma_function_list WHERE name = 'vec_distance_cosine' LIMIT 1"
    ).fetchone()
    return SQLITE_VEC if row else PURE_PYTHON


def product(unit: Sequence[float], blob: bytes) -> float:
    """Return the cosine of a unit vector and a row, NaN for a row that is no vector."""
    values = vectors.unpack(blob)
    similarity = dot(unit, values)
    if abs(similarity) <= LONGEST and (similarity or any(values)):
        return similarity
    return math.nan


def exact_product(unit: Sequence[float], blob: bytes) -> float:
    """Return the cosine of a unit vector and a row without any error of summation."""
    return math.fsum(map(mul, unit, vectors.unpack(blob)))


def by_similarity(row: Row) -> tuple[float, int, int]:
    """Sort the nearest first, of equally near ones the newest message."""
    return -row.similarity, -row.msg_id, row.id


@dataclass
class Table:
    """The visible vectors of one space, and the query they are compared with.

    ``unit`` has ``dims`` numbers and unit length. Rows of another length, of messages that
    are gone or that *filters* leave out do not exist here.
    """

    conn: sqlite3.Connection
    space_id: int
    dims: int
    unit: Sequence[float] = field(repr=False)
    filters: Filters
    layout: Layout
    deadline: float | None = None
    way: str = field(init=False)

    def __post_init__(self) -> None:
        self.way = tier(self.conn)

    @property
    def size(self) -> int:
        """Return the highest row id: no more vectors than that."""
        row = self.conn.execute("SELECT max(id) FROM message_embeddings").fetchone()
        return int(row[0] or 0)

    def passing(self, size: int) -> float:
        """Return about which share of all rows passes the filters."""
        ids = sorted({1 + i * size // SAMPLE for i in range(SAMPLE)})
        marks = ",".join("?" * len(ids))
        joined, params = self._joined()
        (passing,) = self.conn.execute(
            f"SELECT count(*) {joined} AND e.id IN ({marks})", [*params, *ids]
        ).fetchone()
        (present,) = self.conn.execute(
            f"SELECT count(*) FROM message_embeddings e WHERE e.id IN ({marks}) "
            "AND +e.space_id = ?",
            [*ids, self.space_id],
        ).fetchone()
        return passing / present if present else 0.0

    def _joined(self, *more: str) -> tuple[str, list[object]]:
        clauses, params = self.filters.where(self.layout)
        # The plus keeps SQLite from going to the rows one by one through an index.
        clauses = ["+e.space_id = ?", "length(e.embedding) = ?", *clauses, *more]
        joined = (
            "FROM message_embeddings e JOIN messages m ON m.id = e.msg_id "
            f"JOIN sessions s ON s.id = m.session_id WHERE {' AND '.join(clauses)}"
        )
        return joined, [*self._vectors, *params]

    @property
    def _vectors(self) -> tuple[int, int]:
        return self.space_id, self.dims * vectors.BYTES_PER_DIMENSION

    def _read_much(self) -> None:
        """Have the file mapped: quicker for all rows, slower for some of them."""
        self.conn.execute(f"PRAGMA mmap_size = {MMAP_BYTES}")

    def scan(self, floor: float, limit: int, after: int = 0) -> tuple[list[Row], float]:
        """Return rows by descending similarity and what any other row stays below.

        At most *limit*; rows below *floor* are left out, and those up to the id *after*.

        Raises:
            BudgetExceeded: after the deadline.
        """
        if not after:
            self._read_much()
        if self.way == PURE_PYTHON:
            return self._scan_python(floor, limit, after)
        # The distance stays out of WHERE: there SQLite would compute it twice. NULL comes
        # from a zero or NaN vector. SQLite keeps no more than the limit while it sorts.
        joined, params = self._joined("e.id > ?")
        rows = self.conn.execute(
            f"SELECT * FROM (SELECT {_FIELDS}, 1.0 - vec_distance_cosine(e.embedding, ?) "
            f"AS similarity {joined} LIMIT -1) WHERE similarity >= ? "
            "ORDER BY similarity DESC, msg_id DESC, id LIMIT ?",
            (vectors.pack(self.unit), *params, after, floor, limit),
        ).fetchall()
        found = [Row._make(row) for row in rows]
        return found, found[-1].similarity if len(found) == limit else -2.0

    def _scan_python(self, floor: float, limit: int, after: int) -> tuple[list[Row], float]:
        # Read in slices, so that no read lock is held while Python computes: in DELETE mode
        # an append would wait for it.
        joined, params = self._joined("e.id > ?")
        unit, last, rest, found = self.unit, after, -2.0, list[Row]()
        while rows := self.conn.execute(
            f"SELECT e.embedding, {_FIELDS} {joined} ORDER BY e.id LIMIT {SLICE}", [*params, last]
        ).fetchall():
            check_time(self.deadline)
            last = rows[-1][1]
            for blob, *fields in rows:
                similarity = product(unit, blob)
                if similarity >= floor:
                    found.append(Row._make((*fields, similarity)))
            if len(found) > limit:
                found.sort(key=by_similarity)
                rest = max(rest, found[limit].similarity)
                del found[limit:]
                floor = max(floor, found[-1].similarity)
        return sorted(found, key=by_similarity), rest

    def nearest_by_distance(self, floor: float, limit: int) -> tuple[list[int], list[float]]:
        """Return row ids and cosines by descending cosine, filters left aside; by sqlite-vec.

        For unit vectors the distance of Euclid tells the cosine, and is quicker to compute.
        The cosine of a row that is no unit vector is wrong.
        """
        self._read_much()
        most = math.sqrt(max(0.0, 2.0 - 2.0 * floor)) + 1e-5
        rows = self.conn.execute(
            "SELECT * FROM (SELECT e.id, vec_distance_L2(e.embedding, ?) AS distance FROM "
            "message_embeddings e WHERE +e.space_id = ? AND length(e.embedding) = ? LIMIT -1) "
            "WHERE distance <= ? ORDER BY distance LIMIT ?",
            (vectors.pack(self.unit), *self._vectors, most, limit),
        ).fetchall()
        return [row[0] for row in rows], [1.0 - row[1] ** 2 / 2 for row in rows]

    def compare(self, ids: Sequence[int]) -> list[Row]:
        """Return those of *ids* that the filters leave, with their similarity."""
        check_time(self.deadline)
        joined, params = self._joined(f"e.id IN ({','.join('?' * len(ids))})")
        if self.way == SQLITE_VEC:
            rows = self.conn.execute(
                f"SELECT {_FIELDS}, 1.0 - vec_distance_cosine(e.embedding, ?) {joined}",
                (vectors.pack(self.unit), *params, *ids),
            ).fetchall()
            return [Row._make(row) for row in rows if row[-1] is not None]
        rows = self.conn.execute(
            f"SELECT e.embedding, {_FIELDS} {joined}", [*params, *ids]
        ).fetchall()
        found = [Row._make((*fields, product(self.unit, blob))) for blob, *fields in rows]
        return [row for row in found if not math.isnan(row.similarity)]

    def named(self, similarities: dict[int, tuple[float, float]]) -> list[Row]:
        """Return those rows of (made, similarity) by id that are still the same and pass."""
        found = []
        ids = list(similarities)
        for at in range(0, len(ids), IDS_AT_ONCE):
            check_time(self.deadline)
            some = ids[at : at + IDS_AT_ONCE]
            joined, params = self._joined(f"e.id IN ({','.join('?' * len(some))})")
            for row in self.conn.execute(f"SELECT {_FIELDS} {joined}", [*params, *some]):
                made, similarity = similarities[row[0]]
                if row[-1] == made:
                    found.append(Row._make((*row, similarity)))
        return found

    def blob(self, row_id: int) -> bytes:
        """Return the vector of a row, b"" when it is gone."""
        row = self.conn.execute(
            "SELECT embedding FROM message_embeddings WHERE id = ?", (row_id,)
        ).fetchone()
        return bytes(row[0]) if row else b""
