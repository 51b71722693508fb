from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes import PlainDatabase, unit
from hermes_patch import layout, nearest, spaces, store, vectors
from hermes_patch.errors import BudgetExceeded, VectorError
from hermes_patch.layout import Filters

DIMS = 8


def put(database: PlainDatabase, text: str, vector: list[float], session: str = "s1") -> int:
    msg_id = database.message(text, session)
    space = spaces.Space(1, "k", "fake", "fake", len(vector), None)
    from hermes_patch.text import text_hash

    message = store.PendingMessage(msg_id, session, "user", text, text_hash(text))
    store.put(
        database.conn,
        space,
        message,
        [store.ChunkVector(0, 0, len(text), vectors.to_blob(vector))],
    )
    return msg_id


@pytest.fixture
def database(tmp_path: Path) -> PlainDatabase:
    return PlainDatabase(tmp_path / "state.db")


def search(
    database: PlainDatabase,
    query: list[float],
    k: int = 10,
    floor: float = -1.0,
    filters: Filters | None = None,
) -> list[nearest.Neighbour]:
    shape = layout.read(database.conn)
    return nearest.nearest(
        database.conn, 1, len(query), query, k, floor, filters or Filters(), shape
    )


def test_the_order_is_that_of_exact_cosine(database: PlainDatabase) -> None:
    texts = {put(database, f"text {n}", unit(str(n))): str(n) for n in range(200)}
    query = unit("query")
    by_cosine = sorted(texts, key=lambda i: -vectors.cosine(unit(texts[i]), query))
    assert [n.msg_id for n in search(database, query, k=20)] == by_cosine[:20]


def test_nothing_below_the_floor_is_returned(database: PlainDatabase) -> None:
    for n in range(100):
        put(database, f"text {n}", unit(str(n)))
    found = search(database, unit("query"), k=100, floor=0.3)
    assert found and all(n.similarity >= 0.3 for n in found)


def test_vectors_of_another_space_are_never_compared(database: PlainDatabase) -> None:
    msg_id = put(database, "text", unit("a"))
    database.conn.execute("UPDATE message_embeddings SET space_id = 2")
    assert search(database, unit("a")) == []
    assert msg_id in database.vectors()


@pytest.mark.parametrize("blob", [b"", b"\0" * 12, vectors.pack(unit("x", 16))])
def test_a_row_of_another_length_does_not_disturb_the_rest(
    database: PlainDatabase, blob: bytes
) -> None:
    good = put(database, "good", unit("a"))
    bad = put(database, "bad", unit("a"))
    database.conn.execute("UPDATE message_embeddings SET embedding=? WHERE msg_id=?", (blob, bad))
    assert [n.msg_id for n in search(database, unit("a"))] == [good]


def test_zero_and_nan_rows_never_come_first(database: PlainDatabase) -> None:
    good = put(database, "good", unit("a"))
    for values in ([0.0] * DIMS, [math.nan] * DIMS):
        bad = put(database, f"bad {values[0]}", unit("a"))
        row = (vectors.pack(values), bad)
        database.conn.execute("UPDATE message_embeddings SET embedding=? WHERE msg_id=?", row)
    assert [n.msg_id for n in search(database, unit("a"), floor=0.1)] == [good]


def test_filters_do_not_underfill_the_result(database: PlainDatabase) -> None:
    for n in range(300):
        put(database, f"near {n}", unit("a"), "near")
    far = {put(database, f"far {n}", unit("b"), "far") for n in range(3)}
    found = search(database, unit("a"), k=3, filters=Filters(exclude_session_ids=["near"]))
    assert {n.msg_id for n in found} == far


def test_a_message_is_one_hit_with_its_best_chunk(database: PlainDatabase) -> None:
    msg_id = put(database, "long text", unit("a"))
    database.conn.execute(
        "INSERT INTO message_embeddings SELECT NULL, msg_id, session_id, ?, text_hash, dims, "
        "created_at, space_id, 1, 5, 9 FROM message_embeddings",
        (vectors.to_blob(unit("b")),),
    )
    found = search(database, unit("b"))
    assert [(n.msg_id, n.chunk_start, n.chunk_end) for n in found] == [(msg_id, 5, 9)]


def test_deleted_messages_are_gone_at_once_even_with_foreign_keys_off(
    database: PlainDatabase,
) -> None:
    put(database, "text", unit("a"))
    database.conn.execute("PRAGMA foreign_keys=OFF")
    database.conn.execute("DELETE FROM messages")
    assert search(database, unit("a")) == []


def test_after_the_deadline_the_scan_ends(database: PlainDatabase) -> None:
    for n in range(5):
        put(database, f"text {n}", unit(str(n)))
    shape, given = layout.read(database.conn), (1, DIMS, unit("query"), 5, -1.0, Filters())
    late = time.monotonic() - 1.0
    with pytest.raises(BudgetExceeded):
        nearest.nearest(database.conn, *given, shape, late)
    assert len(nearest.nearest(database.conn, *given, shape, time.monotonic() + 600.0)) == 5


@pytest.mark.parametrize("query", [[], [1.0] * 3, [math.nan] * DIMS, [0.0] * DIMS])
def test_a_query_that_is_no_vector_is_refused(database: PlainDatabase, query: list[float]) -> None:
    with pytest.raises(VectorError):
        nearest.nearest(
            database.conn, 1, DIMS, query, 5, 0.0, Filters(), layout.read(database.conn)
        )


SCRIPT = """
import json, sqlite3, sys
from hermes_patch import layout, nearest
path, library, queries = sys.argv[1], sys.argv[2], json.load(sys.stdin)
conn = sqlite3.connect(path)
tier = nearest.accelerate(conn, library)
shape = layout.read(conn)
found = [
    [(n.msg_id, n.similarity)
     for n in nearest.nearest(conn, 1, 8, q, 15, 0.2, layout.Filters(), shape)]
    for q in queries
]
print(json.dumps({"tier": tier, "found": found}))
"""


def python_with_extensions() -> str | None:
    code = "import sqlite3; sqlite3.Connection.enable_load_extension"
    candidates = [sys.executable, "/usr/bin/python3", shutil.which("python3.12")]
    for python in filter(None, candidates):
        if subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
            return python
    return None


def test_sqlite_vec_gives_the_same_as_pure_python(database: PlainDatabase, tmp_path: Path) -> None:
    python = python_with_extensions()
    if python is None:
        pytest.skip("no Python on this machine can load SQLite extensions")
    for n in range(300):
        put(database, f"text {n}", unit(str(n)))
    # A message whose many chunks are all near must not take the places of others.
    many = put(database, "many chunks", unit("query 0"))
    database.conn.executemany(
        "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
        "created_at, space_id, chunk) SELECT msg_id, session_id, embedding, text_hash, dims, "
        "created_at, space_id, ? FROM message_embeddings WHERE msg_id = ? AND chunk = 0",
        [(chunk, many) for chunk in range(1, 200)],
    )
    broken = put(database, "zero", unit("z"))
    row = (vectors.pack([0.0] * DIMS), broken)
    database.conn.execute("UPDATE message_embeddings SET embedding=? WHERE msg_id=?", row)
    queries = [unit(f"query {n}") for n in range(10)]
    library = nearest.find_library()
    assert library is not None
    root = str(Path(nearest.__file__).parent.parent)
    done = subprocess.run(
        [python, "-c", SCRIPT, str(database.path), library],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["tier"] == nearest.SQLITE_VEC
    for query, theirs in zip(queries, answer["found"], strict=True):
        ours = search(database, query, k=15, floor=0.2)
        assert [n.msg_id for n in ours] == [msg_id for msg_id, _ in theirs]
        similarities = [similarity for _, similarity in theirs]
        assert [n.similarity for n in ours] == pytest.approx(similarities, abs=1e-5)
