"""The k nearest vectors: exact cosine over every visible vector of one space.

Small stores, and what narrow filters leave, are compared one by one. In large ones rows are
named first, by codes that a child process keeps (``child.codes``) or by sqlite-vec without
the joins, and those are compared; that goes on until no other row can be among the nearest.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from . import vectors
from .layout import Filters, Layout
from .scanning import (
    PURE_PYTHON,
    SQLITE_VEC,
    Row,
    Table,
    accelerate,
    by_similarity,
    check_time,
    exact_product,
    find_library,
    tier,
)

__all__ = ["PURE_PYTHON", "SQLITE_VEC", "accelerate", "check_time", "find_library", "tier"]

SCANNED = {SQLITE_VEC: 8_000_000, PURE_PYTHON: 500_000}
"""Up to so many numbers are compared one by one, whatever else there is."""
UNAIDED = 250_000_000
"""Up to so many numbers sqlite-vec alone is as fast as a source that is not ``quick``."""
NARROW = 0.1
"""Filters that leave less than this share of all rows are applied before anything else."""
UNCODED = 5000
"""The most rows newer than the codes that are compared one by one beside them."""
SAME, SAME_DOUBLE = 1e-5, 1e-12
"""Similarities closer than this are computed again, without any error of summation: float32,
or the sums of Python, cannot order them."""
RECOMPUTED = 1000
MOST_EQUAL = 40_000
AT_ONCE = 500
PER_SECOND = 40_000_000
"""About so many numbers Python compares in a second."""
WAIT_SECONDS = 0.03
NO_CODES = 1 << 62
"""``covered`` of candidates that come from the table itself."""


@dataclass(frozen=True)
class Neighbour:
    """A message near the query: its best chunk (character offsets) and cosine similarity."""

    msg_id: int
    session_id: str
    chunk_start: int
    chunk_end: int
    similarity: float
    text_hash: str


@dataclass(frozen=True)
class Candidates:
    """Row ids by descending ``uppers``, the most that the cosine of each can be.

    ``rest`` is the same of all other rows with ids up to ``covered``, -2 where none of them
    reaches the floor. Where ``made`` is given (when each row was made), ``uppers`` are the
    similarities themselves, summed in double precision. Those of an inexact source are estimates.
    """

    ids: Sequence[int]
    uppers: Sequence[float]
    rest: float
    covered: int
    exact: bool = True
    made: Sequence[float] | None = None


class Source(Protocol):
    """Names the rows that may be among the nearest."""

    quick: bool
    """Whether it takes less time than sqlite-vec takes for all rows."""
    coming: bool
    """Whether it will have candidates soon, though it had none when it was asked last."""

    def ask(
        self, space_id: int, unit: Sequence[float], k: int, floor: float, deadline: float | None
    ) -> Candidates | None:
        """Return candidates for the *k* nearest rows, None when there are none to be had."""

    def mistaken(self) -> None:
        """Tell that a row turned out nearer than it was said to be able to."""


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
    source: Source | None = None,
) -> list[Neighbour]:
    """Return the *k* messages nearest to *query*, best first, one row per message.

    ``query`` is a vector of *dims* numbers; messages below the cosine *floor* are left out.
    Ties are broken by message id, the newest first. Only vectors of the space, of the right
    length and of messages that pass *filters* are compared. The result does not depend on
    *source*, unless that one is inexact.

    Raises:
        VectorError: the query is not a vector of *dims* finite numbers.
        BudgetExceeded: after *deadline*, a value of ``time.monotonic()``.
    """
    unit = vectors.normalise(query, dims)
    if k <= 0:
        return []
    search = _Search(Table(conn, space_id, dims, unit, filters, layout, deadline), k, floor, source)
    best = search.run()
    return [
        Neighbour(r.msg_id, r.session_id, r.chunk_start, r.chunk_end, r.similarity, r.text_hash)
        for r in best
    ]


Ask = Callable[[int, int], Candidates | None]


@dataclass
class _Search:
    """One search; similarities are ``precise`` where all were summed in double precision."""

    table: Table
    k: int
    floor: float
    source: Source | None
    precise: bool = False

    def __post_init__(self) -> None:
        self.precise = self.table.way == PURE_PYTHON

    def run(self) -> list[Row]:
        size = self.table.size
        small = size * self.table.dims <= SCANNED[self.table.way] or 2 * self.k >= size
        if small or self.table.passing(size) < NARROW:
            return self._scanned()
        best = self._by_candidates(size, self._named) if self._helps(size) else None
        if best is None and self.table.way == SQLITE_VEC:
            best = self._by_candidates(size, self._by_distance)
        return self._scanned() if best is None else best

    def _helps(self, size: int) -> bool:
        """Tell whether the source is worth its memory."""
        if self.source is None or self.source.quick or self.table.way != SQLITE_VEC:
            return self.source is not None
        return size * self.table.dims > UNAIDED

    def _scanned(self) -> list[Row]:
        limit = self.k + self.k // 2 + 8
        while True:
            rows, rest = self.table.scan(self.floor - SAME, limit)
            best = self._best(rows)
            if rest < self.floor - SAME or self._beats(best, rest) or limit > MOST_EQUAL:
                return best
            limit *= 4  # messages of many chunks took the places of others, or all are equal

    def _beats(self, best: list[Row], rest: float) -> bool:
        """Tell whether there are k best rows and none of the others can be among them."""
        return len(best) == self.k and best[-1].similarity > rest + SAME

    def _by_candidates(self, size: int, ask: Ask) -> list[Row] | None:
        """Return the best rows through candidates, None where a scan is the better way."""
        wanted = self.k + self.k // 8 + 8
        while 2 * wanted < size:
            found = ask(wanted, size)
            if found is None:
                return None
            rows, rest = self._compared(found)
            enough = not found.exact and _are_mostly_below(rows, self.floor)
            if found.covered < size:
                later, _ = self.table.scan(self.floor - SAME, size, after=found.covered)
                self.precise = self.precise and (not later or self.table.way == PURE_PYTHON)
                rows += later
            best = self._best(rows)
            enough = enough or (not found.exact and len(best) == self.k)
            if enough or rest < self.floor - SAME or self._beats(best, rest):
                return best
            wanted *= 4
        return None

    def _named(self, wanted: int, size: int) -> Candidates | None:
        assert self.source is not None
        table, source = self.table, self.source
        floor, end = self.floor - SAME, time.monotonic() + self._patience(size)
        while True:
            found = source.ask(table.space_id, table.unit, wanted, floor, table.deadline)
            if found is not None and size - found.covered <= UNCODED:
                return found
            if not source.coming or time.monotonic() >= end:
                return None
            time.sleep(WAIT_SECONDS)

    def _patience(self, size: int) -> float:
        """Return for how many seconds candidates are worth waiting for.

        What time is left beside a scan; all of it where there is none for a scan.
        """
        if self.table.way == SQLITE_VEC or self.table.deadline is None:
            return 0.0
        left = self.table.deadline - time.monotonic()
        scan = size * self.table.dims / PER_SECOND
        return left - scan if scan < left else left

    def _by_distance(self, wanted: int, size: int) -> Candidates:
        ids, cosines = self.table.nearest_by_distance(self.floor - SAME, wanted)
        rest = cosines[-1] + SAME if len(ids) == wanted else -2.0
        return Candidates(ids, [cosine + SAME for cosine in cosines], rest, covered=NO_CODES)

    def _compared(self, found: Candidates) -> tuple[list[Row], float]:
        """Compare candidates until no other can be among the best; return what is left."""
        named = found.made is not None
        self.precise = self.precise or named
        rows: list[Row] = []
        step = self.k + 8 if named else min(self.k + 8, AT_ONCE)
        for at in range(0, len(found.ids), step):
            rows += self._some(found, slice(at, at + step))
            others = found.uppers[at + step : at + step + 1]
            if others and found.exact and self._beats(self._best(rows), others[0]):
                return rows, max(others[0], found.rest)
        return rows, found.rest

    def _some(self, found: Candidates, part: slice) -> list[Row]:
        if found.made is None:
            rows = self.table.compare(found.ids[part])
            self._check(rows, found)
            return rows
        known = zip(found.made[part], found.uppers[part], strict=True)
        return self.table.named(dict(zip(found.ids[part], known, strict=True)))

    def _check(self, rows: list[Row], found: Candidates) -> None:
        if not found.exact or self.source is None or found.covered == NO_CODES:
            return
        uppers = dict(zip(found.ids, found.uppers, strict=True))
        if any(row.similarity > uppers[row.id] + SAME for row in rows):
            self.source.mistaken()

    def _best(self, rows: list[Row]) -> list[Row]:
        """Return the k best messages of *rows*, each with its best row."""
        best: dict[int, Row] = {}
        rows.sort(key=by_similarity)
        for row in self._ordered(rows):
            if row.similarity < self.floor:
                break
            best.setdefault(row.msg_id, row)
            if len(best) == self.k:
                break
        return list(best.values())

    def _ordered(self, rows: list[Row]) -> Iterator[Row]:
        """Yield sorted rows, those that are too near one another in their exact order."""
        at, same = 0, SAME_DOUBLE if self.precise else SAME
        while at < len(rows):
            end = at + 1
            while end < len(rows) and rows[end - 1].similarity - rows[end].similarity < same:
                end += 1
            run = rows[at:end]
            at_floor = abs(run[-1].similarity - self.floor) < same
            if (at_floor or len(run) > 1) and len(run) <= RECOMPUTED:
                run = sorted(self._recomputed(run), key=by_similarity)
            yield from run
            at = end

    def _recomputed(self, run: list[Row]) -> Iterator[Row]:
        known: dict[bytes, float] = {}
        for row in run:
            blob = self.table.blob(row.id)
            if blob and blob not in known:
                known[blob] = exact_product(self.table.unit, blob)
            yield row._replace(similarity=known.get(blob, row.similarity))


def _are_mostly_below(rows: list[Row], floor: float) -> bool:
    return 2 * sum(row.similarity < floor for row in rows) >= len(rows)
