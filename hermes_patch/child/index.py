"""The codes of one space of one database, kept in step with the table.

Nothing here is the truth: whoever asks compares what is named with the table, looks himself
at rows that were added since, and does without where there are no codes yet. Ids grow, a row
is never changed in place, and only ids above every row that is left are ever given again; so
new rows are found by their ids, and a last row that is still the same proves those before it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from urllib.parse import quote

from .codes import Block, Codes, Found, usable

BLOCK_ROWS = 2048
IDS_AT_ONCE = 500
FRESH_ROWS = 256
"""So many new rows are worth being coded."""
FOLLOW_SECONDS = 1.0
RECOUNT_SECONDS = 10.0
GONE_ROWS = 64
"""With so many rows deleted, blocks are made anew."""
_ROWS_OF_SPACE = "+space_id = ? AND length(embedding) = ?"
_BYTES = {"int8": (1.0, 32), "columns": (4.4, 160), "bits": (0.14, 90)}
"""Bytes a dimension and bytes a row."""


@dataclass(frozen=True)
class Answer:
    """Which kind of codes named rows, the highest row id they know, and the rows.

    Where ``made`` is given, the time each row was made, ``found.uppers`` are similarities.
    """

    kind: str
    exact: bool
    covered: int
    found: Found
    made: Sequence[float] | None


def cost(kind: str, rows: int, dims: int) -> int:
    """Return about how many bytes the codes of so many vectors take."""
    per_number, per_row = _BYTES[kind]
    return int(rows * (dims * per_number + per_row))


def best_of(rows: int, dims: int, limit: int, kinds: Sequence[str]) -> str | None:
    """Return the first of *kinds* whose codes fit into *limit* bytes, None for none."""
    return next((kind for kind in kinds if cost(kind, rows, dims) <= limit), None)


class Index:
    """Coded vectors of *dims* numbers of one space; ``limit`` is in bytes."""

    def __init__(
        self, path: str, space: int, dims: int, limit: int, use_numpy: bool, exact: bool
    ) -> None:
        self._path = path
        self._key = (space, dims * 4)
        self._dims = dims
        self._limit = limit
        self.kinds = [one for one in usable(dims, use_numpy) if one.exact or not exact]
        self._file: tuple[int, int] | None = None
        self._blocks: tuple[Codes, list[Block]] | None = None
        self._counted = 0.0
        self._thread: threading.Thread | None = None
        self._done = False
        self._next = 0.0
        self.refused = False

    # -- asking ----------------------------------------------------------------------------

    @property
    def covered(self) -> int:
        """The highest row id among the codes, 0 where there are none yet."""
        _, blocks = self._blocks or (None, [])
        return blocks[-1].ids[-1] if blocks else 0

    def search(self, query: array[float], k: int, floor: float) -> Answer:
        """Return the rows that may be among the *k* nearest.

        Raises LookupError while there are no codes, or none that fit the table.
        """
        if self._blocks is None or not self._blocks[1]:
            raise LookupError("no codes yet")
        codes, blocks = self._blocks
        with closing(self._connect()) as conn:
            if self._file != _file(self._path) or not self._still_there(conn, blocks[-1]):
                raise LookupError("the table is another one")
            found = codes.search(blocks, query, k, floor)
            answer = Answer(codes.kind, codes.exact, blocks[-1].ids[-1], found, None)
            return self._compared(conn, answer, codes, query, k) if codes.compares else answer

    def _compared(
        self, conn: sqlite3.Connection, answer: Answer, codes: Codes, query: array[float], k: int
    ) -> Answer:
        """Return *answer* with similarities for bounds, cut to the *k* best."""
        found, step = answer.found, min(k + 8, IDS_AT_ONCE)
        uppers = dict(zip(found.ids, found.uppers, strict=True))
        best: list[tuple[float, int, float]] = []
        for at in range(0, len(found.ids), step):
            if len(best) > k and best[k - 1][0] > found.uppers[at]:
                found = Found(found.ids, found.uppers, max(found.rest, found.uppers[at]))
                break
            rows = self._rows(conn, found.ids[at : at + step])
            similarities = codes.compare([row[2] for row in rows], query) if rows else []
            for similarity, (row_id, made, _) in zip(similarities, rows, strict=True):
                if similarity <= uppers[row_id] + 1e-5:
                    best.append((similarity, row_id, made))
                else:  # NaN, too: the row was changed in place
                    self.forget()
            best.sort(reverse=True)
        rest = max(found.rest, best[k][0]) if len(best) > k else found.rest
        kept = best[:k]
        named = Found([one[1] for one in kept], [one[0] for one in kept], rest)
        return replace(answer, found=named, made=[one[2] for one in kept])

    def _rows(self, conn: sqlite3.Connection, ids: Sequence[int]) -> list[tuple[int, float, bytes]]:
        return conn.execute(
            "SELECT id, created_at, embedding FROM message_embeddings WHERE "
            f"id IN ({','.join('?' * len(ids))}) AND {_ROWS_OF_SPACE}",
            (*ids, *self._key),
        ).fetchall()

    def size(self) -> tuple[int, int]:
        """Return the number of rows and about how many bytes their codes take."""
        if self._blocks is None:
            return 0, 0
        codes, blocks = self._blocks
        rows = sum(len(block.ids) for block in blocks)
        return rows, cost(codes.kind, rows, self._dims)

    def forget(self) -> None:
        """Make all codes anew: what was named did not fit the table."""
        self._file = None
        self._done = False

    # -- keeping in step -------------------------------------------------------------------

    def follow(self) -> bool:
        """Have a thread bring the codes up to the table, unless one is at it.

        Returns whether all codes were made by the last one.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._done and time.monotonic() < self._next:
            return True
        self._next = time.monotonic() + FOLLOW_SECONDS
        self._thread = threading.Thread(target=self._run, daemon=True, name="codes")
        self._thread.start()
        return self._done

    def _run(self) -> None:
        # The next request tries again; until then there are fewer codes, or none.
        with suppress(sqlite3.Error, OSError, MemoryError, ValueError):
            self.refresh()
            self._done = True

    def refresh(self) -> None:
        """Bring the codes up to the table; raises sqlite3.Error, OSError."""
        file = _file(self._path)
        with closing(self._connect()) as conn:
            if file != self._file:
                self._blocks, self._counted, self._file = None, 0.0, file
            self._update(conn)

    def _connect(self) -> sqlite3.Connection:
        uri = f"file:{quote(self._path)}?mode=ro"
        conn = sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)
        conn.execute("PRAGMA query_only = ON")
        return conn

    def _update(self, conn: sqlite3.Connection) -> None:
        rows = _count(conn, self._key[0])
        kinds = {one.kind: one for one in self.kinds}
        kind = best_of(rows, self._dims, self._limit, list(kinds))
        self.refused = kind is None
        if kind is None:
            self._blocks = None
            return
        best = kinds[kind]
        if self._blocks is None and kind == "columns" and "bits" in kinds:
            self._extend(conn, kinds["bits"], [])  # made in a tenth of the time
        if self._blocks is not None and self._blocks[0].kind == best.kind:
            codes, blocks = self._blocks
            self._extend(conn, codes, self._checked(conn, blocks, rows))
        else:
            self._extend(conn, best, [])

    def _checked(self, conn: sqlite3.Connection, blocks: list[Block], rows: int) -> list[Block]:
        """Return the blocks that still hold, those with rows deleted since made anew."""
        kept = list(blocks)
        while kept and not self._still_there(conn, kept[-1]):
            kept.pop()
        now = time.monotonic()
        if now - self._counted < RECOUNT_SECONDS:
            return kept
        self._counted = now
        known = sum(len(block.ids) for block in kept)
        after = _count(conn, self._key[0], kept[-1].ids[-1] if kept else 0)
        if known - (rows - after) <= max(GONE_ROWS, known // 50):
            return kept
        return [block for block in (self._without_gone(conn, b) for b in kept) if block.ids]

    def _still_there(self, conn: sqlite3.Connection, block: Block) -> bool:
        row = conn.execute(
            "SELECT created_at, space_id FROM message_embeddings WHERE id = ?", (block.ids[-1],)
        ).fetchone()
        return row is not None and tuple(row) == (block.made[-1], self._key[0])

    def _without_gone(self, conn: sqlite3.Connection, block: Block) -> Block:
        codes = (self._blocks or (self.kinds[0], []))[0]
        bounds = (block.ids[0], block.ids[-1])
        (left,) = conn.execute(
            "SELECT count(*) FROM message_embeddings WHERE id BETWEEN ? AND ? AND "
            f"{_ROWS_OF_SPACE}",
            (*bounds, *self._key),
        ).fetchone()
        if left == len(block.ids):
            return block
        return self._coded(codes, self._read(conn, bounds[0] - 1, bounds[1]))

    def _extend(self, conn: sqlite3.Connection, codes: Codes, blocks: list[Block]) -> None:
        """Code the rows after those of *blocks*; a block that is not full is made anew."""
        last = blocks[-1].ids[-1] if blocks else 0
        growing = bool(blocks) and len(blocks[-1].ids) < BLOCK_ROWS
        if blocks and _count(conn, self._key[0], last) < FRESH_ROWS:
            self._blocks = (codes, blocks)
            return
        if growing:
            blocks = blocks[:-1]
            last = blocks[-1].ids[-1] if blocks else 0
        replaces = self._blocks is not None and self._blocks[0] is not codes
        while rows := self._read(conn, last):
            blocks = [*blocks, self._coded(codes, rows)]
            last = blocks[-1].ids[-1]
            if not replaces and last > self.covered:
                self._blocks = (codes, blocks)
        self._blocks = (codes, blocks)

    def _read(
        self, conn: sqlite3.Connection, after: int, last: int = (1 << 63) - 1
    ) -> list[tuple[int, float, bytes]]:
        return conn.execute(
            "SELECT id, created_at, embedding FROM message_embeddings WHERE id > ? AND id <= ? "
            f"AND {_ROWS_OF_SPACE} ORDER BY id LIMIT {BLOCK_ROWS}",
            (after, last, *self._key),
        ).fetchall()

    def _coded(self, codes: Codes, rows: Sequence[tuple[int, float, bytes]]) -> Block:
        ids, made, blobs = zip(*rows, strict=True) if rows else ((), (), ())
        return Block(array("q", ids), array("d", made), codes.encode(blobs) if rows else None)


def _file(path: str) -> tuple[int, int]:
    """Return what tells the file at *path* from any other; raises OSError."""
    found = os.stat(path)
    return (found.st_dev, found.st_ino)


def _count(conn: sqlite3.Connection, space: int, after: int | None = None) -> int:
    """Count the rows of a space, those with a higher id than *after* if it is given."""
    # An index that holds nothing else of a row is read where all are counted.
    where = "space_id = ?" if after is None else "+space_id = ? AND id > ?"
    given = (space,) if after is None else (space, after)
    row = conn.execute(f"SELECT count(*) FROM message_embeddings WHERE {where}", given).fetchone()
    return int(row[0])
