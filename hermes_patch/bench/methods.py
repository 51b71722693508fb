"""The ways to find the nearest vectors that are compared; each opens its own connection.

Run as ``python -m hermes_patch.bench.methods STORE METHOD`` with the queries as JSON on
standard input; prints milliseconds, ids and resident memory as JSON.
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
from ..engine import connect_readonly
from .stores import SPACE

TOP = 20
GUIDE = "guide's scan"
PYTHON = "ours, pure Python"
VEC = "ours, sqlite-vec"
PLAIN_VEC = "vec_distance_cosine"
VEC0 = "vec0"
METHODS = (GUIDE, PYTHON, VEC, PLAIN_VEC, VEC0)
NEED_VEC = (VEC, PLAIN_VEC, VEC0)

Ask = Callable[[Sequence[float]], list[int]]
_JOINED = (
    "FROM message_embeddings e JOIN messages m ON m.id = e.msg_id "
    "JOIN sessions s ON s.id = m.session_id WHERE s.source NOT IN ('tool')"
)


def guide(conn: sqlite3.Connection, dims: int) -> Ask:
    """The scan that hand-made recipes use: unpack every BLOB, a Python loop a vector."""

    def ask(query: Sequence[float]) -> list[int]:
        norm = math.sqrt(sum(x * x for x in query))
        scored = []
        for msg_id, blob in conn.execute(f"SELECT e.msg_id, e.embedding {_JOINED}"):
            vector = struct.unpack(f"<{dims}f", blob)
            dot = size = 0.0
            for a, b in zip(query, vector, strict=True):
                dot += a * b
                size += b * b
            scored.append((dot / (norm * math.sqrt(size) or 1.0), msg_id))
        scored.sort(reverse=True)
        return [msg_id for _, msg_id in scored[:TOP]]

    return ask


def ours(conn: sqlite3.Connection, dims: int) -> Ask:
    """``nearest``, with joins, filters and floor as a search has them."""
    shape, filters = layout.read(conn), layout.Filters(exclude_sources=["tool"])

    def ask(query: Sequence[float]) -> list[int]:
        found = nearest.nearest(conn, SPACE, dims, query, TOP, -1.0, filters, shape)
        return [one.msg_id for one in found]

    return ask


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


_MAKE: dict[str, Callable[[sqlite3.Connection, int], Ask]] = {
    GUIDE: guide,
    PYTHON: ours,
    VEC: ours,
    PLAIN_VEC: plain_vec,
    VEC0: vec0,
}


def connect(path: Path, method: str) -> sqlite3.Connection:
    """Open the store as *method* has it, a default connection but for ours.

    Raises RuntimeError where the extension cannot be loaded.
    """
    conn = connect_readonly(path) if method in (PYTHON, VEC) else _existing(path)
    if method in NEED_VEC and nearest.accelerate(conn, nearest.find_library()) != "sqlite-vec":
        raise RuntimeError("this Python does not load sqlite-vec")
    return conn


def _existing(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)


def main(store: str, method: str) -> None:
    """Run *method* on *store* and print what it took."""
    given = json.load(sys.stdin)
    conn = connect(Path(store), method)
    ask = _MAKE[method](conn, given["dims"])
    if given["warm"]:
        ask(given["queries"][0])
    times, answers = [], []
    for query in given["queries"]:
        started = time.perf_counter()
        answers.append(ask(query))
        times.append((time.perf_counter() - started) * 1e3)
    print(json.dumps({"ms": times, "ids": answers, "rss_mb": _resident()}))


def _resident() -> float | None:
    try:
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), None)


if __name__ == "__main__":
    main(*sys.argv[1:])
