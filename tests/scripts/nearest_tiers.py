"""Search generated small stores with every tier this Python has and compare with exact cosine.

``python nearest_tiers.py FOLDER FIRST LAST LIBRARY``: the seeds of the stores, ten queries
each. Prints as JSON how many answers each tier gave, and the first one that was wrong.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
import sys
from array import array
from collections.abc import Sequence
from operator import mul
from pathlib import Path
from typing import Any

from hermes_patch import layout, nearest, vectors
from hermes_patch.child import index
from hermes_patch.layout import Filters

try:
    from hermes_patch import migrations
except ImportError:  # not installed, only on the path
    import migrations  # type: ignore[no-redef]

QUERIES = 10
STORES_IN_FILE = 50
SESSIONS = {"a": "cli", "b": "cli", "c": "telegram", "d": "tool"}
MESSAGES = 60
SCHEMA = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (6);
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT,
    parent_session_id TEXT, started_at REAL NOT NULL);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
    role TEXT NOT NULL, content TEXT, tool_name TEXT, timestamp REAL NOT NULL);
"""


class Named:
    """Candidates out of codes in this process."""

    quick = True
    coming = False

    def __init__(self, codes: index.Index, refresh: bool) -> None:
        self.codes = codes
        if refresh:
            codes.refresh()

    def ask(
        self, space_id: int, unit: Sequence[float], k: int, floor: float, deadline: float | None
    ) -> nearest.Candidates | None:
        try:
            answer = self.codes.search(array("d", unit), k, floor)
        except LookupError:
            return None
        found = answer.found
        return nearest.Candidates(
            found.ids, found.uppers, found.rest, answer.covered, answer.exact, answer.made
        )

    def mistaken(self) -> None:
        raise AssertionError("a bound did not hold")


def make(path: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(path, isolation_level=None)
    conn.executescript(SCHEMA)
    migrations.apply(conn)
    for n, (session, source) in enumerate(SESSIONS.items()):
        conn.execute("INSERT INTO sessions VALUES (?, ?, 'm', NULL, ?)", (session, source, n))
    names = list(SESSIONS)
    conn.executemany(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, 'text', ?)",
        [(names[n % 4], ("user", "assistant")[n % 3 > 0], n) for n in range(MESSAGES)],
    )
    return conn


def vector(dice: random.Random, dims: int, known: list[list[float]]) -> list[float]:
    kind = dice.random()
    if known and kind < 0.15:
        return dice.choice(known)
    if known and kind < 0.25:
        return vectors.normalise([v + dice.gauss(0, 1e-6) for v in dice.choice(known)])
    if kind < 0.45:
        values = [float(dice.randint(-1, 1)) for _ in range(dims)]
        return vectors.normalise(values if any(values) else [1.0] * dims)
    if kind < 0.5:
        return vectors.normalise([1.0] + [0.0] * (dims - 1))
    return vectors.normalise([dice.gauss(0.3, 1) for _ in range(dims)])


def spoilt(dice: random.Random, dims: int) -> bytes:
    bad = dice.choice([0.0, math.nan, math.inf])
    values = [bad] * dims if dice.random() < 0.5 else [bad, *([0.0] * (dims - 1))]
    return vectors.pack(values) if dice.random() < 0.7 else b"\0" * dice.randrange(4 * dims)


def add(conn: sqlite3.Connection, dice: random.Random, space: int, dims: int, count: int) -> None:
    known: list[list[float]] = []
    for _ in range(count):
        known.append(vector(dice, dims, known))
        blob = spoilt(dice, dims) if dice.random() < 0.06 else vectors.pack(known[-1])
        msg_id = dice.randrange(1, MESSAGES + 6)  # some messages do not exist
        chunk = dice.randrange(1 << 40)
        conn.execute(
            "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
            "created_at, space_id, chunk, chunk_start) VALUES (?, '', ?, 'h', ?, ?, ?, ?, ?)",
            (msg_id, blob, dims, dice.random(), space, chunk, chunk % 100),
        )


def change(conn: sqlite3.Connection, dice: random.Random, space: int, dims: int) -> None:
    """Delete some rows, the newest ones too, and add others, some of them with old ids."""
    rows = conn.execute("SELECT id FROM message_embeddings WHERE space_id = ?", (space,)).fetchall()
    (newest,) = conn.execute("SELECT max(id) FROM message_embeddings").fetchone()
    spared = (newest or 0) - dice.randrange(12)
    gone = [row for row in rows if row[0] > spared or dice.random() < 0.2]
    conn.executemany("DELETE FROM message_embeddings WHERE id = ?", gone)
    add(conn, dice, space, dims, dice.randrange(20))


def expected(
    conn: sqlite3.Connection, given: tuple[Any, ...], shape: layout.Layout
) -> list[tuple[int, int]]:
    space, dims, query, k, floor, filters = given
    unit = vectors.normalise(query, dims)
    where, params = filters.where(shape)
    rows = conn.execute(
        "SELECT e.id, e.msg_id, e.chunk_start, e.embedding FROM message_embeddings e "
        "JOIN messages m ON m.id = e.msg_id JOIN sessions s ON s.id = m.session_id "
        f"WHERE {' AND '.join(['e.space_id = ?', *where])}",
        (space, *params),
    )
    scored = []
    for row_id, msg_id, start, blob in rows:
        values = array("f", blob[: len(blob) // 4 * 4])
        if len(blob) != 4 * dims or not any(values) or not all(map(math.isfinite, values)):
            continue
        cosine = math.fsum(map(mul, unit, values))
        if floor <= cosine <= 1.001:
            scored.append((-cosine, -msg_id, row_id, msg_id, start))
    best: dict[int, int] = {}
    for *_, msg_id, start in sorted(scored):
        best.setdefault(msg_id, start)
    return list(best.items())[:k]


def query(dice: random.Random, conn: sqlite3.Connection, space: int, dims: int) -> tuple[Any, ...]:
    stored = conn.execute(
        "SELECT embedding FROM message_embeddings WHERE space_id = ? AND length(embedding) = ? "
        "ORDER BY id LIMIT 1 OFFSET ?",
        (space, 4 * dims, dice.randrange(30)),
    ).fetchone()
    asked = vector(dice, dims, [])
    if stored and dice.random() < 0.4:
        values = vectors.unpack(stored[0])
        if any(values) and all(abs(value) < 2 for value in values):
            asked = list(values)
    filters = Filters(
        exclude_sources=dice.choice([None, ["tool"], ["cli", "tool"]]),
        role_filter=dice.choice([None, None, ["user"]]),
        exclude_session_ids=dice.choice([None, None, ["a"]]),
    )
    return space, dims, asked, dice.randint(1, 12), dice.choice([-1.0, 0.0, 0.31, 0.5]), filters


def tiers(path: Path, space: int, dims: int, has_vec: bool) -> dict[str, index.Index | None]:
    found: dict[str, index.Index | None] = {"scan": None, "columns": None}
    if has_vec:
        found["distance"] = None
    for name, use_numpy in (("columns", False), ("int8", True)):
        codes = index.Index(str(path), space, dims, 1 << 30, use_numpy, exact=True)
        if codes.kinds[0].kind == name:
            found[name] = codes
    return found


def main(folder: str, first: str, last: str, library: str) -> None:
    index.BLOCK_ROWS, index.FRESH_ROWS, index.RECOUNT_SECONDS = 16, 8, 0.0
    index.GONE_ROWS, nearest.NARROW = 4, 0.0
    result: dict[str, Any] = {"answers": {}, "wrong": None}
    for seed in range(int(first), int(last)):
        dice = random.Random(seed)
        path = Path(folder) / f"{seed // STORES_IN_FILE}.db"
        conn = sqlite3.connect(path, isolation_level=None) if path.exists() else make(path)
        vec = sqlite3.connect(path, isolation_level=None)
        has_vec = nearest.accelerate(vec, library) == nearest.SQLITE_VEC
        dims, shape, space = dice.randint(1, 24), layout.read(conn), seed + 1
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("BEGIN")
        add(conn, dice, space, dims, dice.randrange(90))
        conn.execute("COMMIT")
        ways = tiers(path, space, dims, has_vec)
        for n in range(QUERIES):
            if n == QUERIES // 2:
                conn.execute("BEGIN")
                change(conn, dice, space, dims)
                conn.execute("COMMIT")
            given = query(dice, conn, space, dims)
            right = expected(conn, given, shape)
            for name, codes in ways.items():
                source = Named(codes, refresh=n % 3 == 0) if codes is not None else None
                nearest.SCANNED = dict.fromkeys(nearest.SCANNED, 1 << 60 if name == "scan" else 0)
                for way in (conn, vec) if has_vec else (conn,):
                    if name == "distance" and way is conn:
                        continue
                    found = nearest.nearest(way, *given, shape, source=source)
                    label = f"{name}, {nearest.tier(way)}"
                    result["answers"][label] = result["answers"].get(label, 0) + 1
                    got = [(one.msg_id, one.chunk_start) for one in found]
                    if got != right and result["wrong"] is None:
                        result["wrong"] = [label, seed, n, got, right]
        vec.close()
        conn.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
