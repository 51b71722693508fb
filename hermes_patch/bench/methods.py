"""The ways to find the nearest vectors that are compared; each opens its own connection.

Run as ``python -m hermes_patch.bench.methods STORE METHOD`` with the queries as JSON on
standard input; prints milliseconds, ids and memory as JSON.
"""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import layout, nearest, vectors
from ..coarse import Coarse
from ..connecting import connect_readonly
from .stores import SPACE

TOP = 20
GUIDE = "guide's scan"
PYTHON = "ours, pure Python"
VEC = "ours, sqlite-vec"
NUMPY = "ours, numpy"
PLAIN_VEC = "vec_distance_cosine"
VEC0 = "vec0"
METHODS = (GUIDE, PYTHON, VEC, NUMPY, PLAIN_VEC, VEC0)
NEED_VEC = (VEC, PLAIN_VEC, VEC0)
CODED = (PYTHON, VEC, NUMPY)
"""Those that have a child process keep codes."""
MEGABYTES = 512
FLOOR = 0.0
ABSENT = "not to be had by this Python"
_READY_SECONDS = 600.0

Ask = Callable[[Sequence[float]], list[int]]
_JOINED = (
    "FROM message_embeddings e JOIN messages m ON m.id = e.msg_id "
    "JOIN sessions s ON s.id = m.session_id WHERE s.source NOT IN ('tool')"
)


def guide(conn: sqlite3.Connection, dims: int, rows: int | None) -> Ask:
    """The scan that hand-made recipes use: unpack every BLOB, a Python loop a vector.

    Of the first *rows* only, where a number is given.
    """
    joined = _JOINED if rows is None else f"{_JOINED} AND e.id <= {rows}"

    def ask(query: Sequence[float]) -> list[int]:
        norm = math.sqrt(sum(x * x for x in query))
        scored = []
        for msg_id, blob in conn.execute(f"SELECT e.msg_id, e.embedding {joined}"):
            vector = struct.unpack(f"<{dims}f", blob)
            dot = size = 0.0
            for a, b in zip(query, vector, strict=True):
                dot += a * b
                size += b * b
            scored.append((dot / (norm * math.sqrt(size) or 1.0), msg_id))
        scored.sort(reverse=True)
        return [msg_id for _, msg_id in scored[:TOP]]

    return ask


def ours(conn: sqlite3.Connection, dims: int, source: Coarse | None) -> Ask:
    """``nearest``, with joins, filters and floor as a search has them."""
    shape, filters = layout.read(conn), layout.Filters(exclude_sources=["tool"])

    def ask(query: Sequence[float]) -> list[int]:
        found = nearest.nearest(conn, SPACE, dims, query, TOP, FLOOR, filters, shape, source=source)
        return [one.msg_id for one in found]

    return ask


def codes_of(path: Path, method: str) -> Coarse:
    """Return what keeps codes of a store as *method* has them."""

    def failed(error: Exception) -> None:
        raise error

    return Coarse(
        path, None, megabytes=MEGABYTES, use_numpy=method == NUMPY, exact=False, note=failed
    )


def wait_for(source: Coarse, ask: Ask, query: Sequence[float]) -> None:
    """Search until all codes are made, if there are to be any.

    Raises RuntimeError where numpy was to make them and is not there.
    """
    end = time.monotonic() + _READY_SECONDS
    while source.state and not source.state.get("ready") and time.monotonic() < end:
        time.sleep(0.1)
        ask(query)
    if source.uses_numpy and source.state.get("kind") == "columns":
        raise RuntimeError(ABSENT)


def plain_vec(conn: sqlite3.Connection, dims: int) -> Ask:
    """What sqlite-vec's documentation shows: the distance, sorted, limited."""

    def ask(query: Sequence[float]) -> list[int]:
        rows = conn.execute(
            f"SELECT e.msg_id {_JOINED} ORDER BY vec_distance_cosine(e.embedding, ?) LIMIT {TOP}",
            (vectors.pack(query),),
        )
        return [row[0] for row in rows]

    return ask


def vec0(conn: sqlite3.Connection, dims: int) -> Ask:
    """A virtual table of sqlite-vec, filled before the clock starts."""
    conn.execute(f"CREATE VIRTUAL TABLE temp.v USING vec0(e float[{dims}] distance_metric=cosine)")
    conn.execute("INSERT INTO temp.v(rowid, e) SELECT msg_id, embedding FROM message_embeddings")

    def ask(query: Sequence[float]) -> list[int]:
        rows = conn.execute(
            "SELECT rowid FROM temp.v WHERE e MATCH ? AND k = ? ORDER BY distance",
            (vectors.pack(query), TOP),
        )
        return [row[0] for row in rows]

    return ask


def connect(path: Path, method: str) -> sqlite3.Connection:
    """Open the store as *method* has it, a default connection but for ours.

    Raises RuntimeError where the extension cannot be loaded.
    """
    conn = connect_readonly(path) if method in (PYTHON, VEC, NUMPY) else _existing(path)
    if method in NEED_VEC and nearest.accelerate(conn, nearest.find_library()) != "sqlite-vec":
        raise RuntimeError(ABSENT)
    return conn


def _existing(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)


def prepare(path: Path, method: str, dims: int, rows: int | None) -> tuple[Ask, Coarse | None]:
    """Return how *method* answers, and what keeps its codes, if anything does."""
    conn = connect(path, method)
    if method == GUIDE:
        return guide(conn, dims, rows), None
    if method in (PLAIN_VEC, VEC0):
        return (plain_vec if method == PLAIN_VEC else vec0)(conn, dims), None
    source = codes_of(path, method) if method in CODED else None
    return ours(conn, dims, source), source


def main(store: str, method: str) -> None:
    """Run *method* on *store* and print what it took."""
    given = json.load(sys.stdin)
    started = time.perf_counter()
    ask, source = prepare(Path(store), method, given["dims"], given["rows"])
    first = None
    if given["warm"]:
        ask(given["queries"][0])
        first = (time.perf_counter() - started) * 1e3
    if source is not None:
        wait_for(source, ask, given["queries"][0])
    times, answers = [], []
    for query in given["queries"]:
        started = time.perf_counter()
        answers.append(ask(query))
        times.append((time.perf_counter() - started) * 1e3)
    child = source.pid if source is not None else None
    result = {"ms": times, "ids": answers, "first_ms": first, "rss_mb": resident()}
    result |= {"child_mb": resident(child) if child else 0.0}
    result |= {"codes": source.state.get("kind") if source is not None else None}
    print(json.dumps(result))
    if source is not None:
        source.close()


def resident(process: int | str = "self") -> float | None:
    """Return the resident megabytes of a process, None where the system does not tell."""
    try:
        lines = Path(f"/proc/{process}/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), None)


if __name__ == "__main__":
    main(*sys.argv[1:])
