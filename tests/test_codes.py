"""Codes: their bounds hold, they follow the table, they stay within the memory given.

And the child process that keeps them: no search waits for it, and none fails with it.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from array import array
from collections.abc import Iterator
from operator import mul
from pathlib import Path

import pytest

from fakes import PlainDatabase, unit
from hermes_patch import layout, nearest, vectors
from hermes_patch.child import client, codes, engine, index
from hermes_patch.coarse import Coarse
from hermes_patch.layout import Filters
from hermes_patch.scanning import Table

DIMS = 48
PLENTY = 1 << 30


@pytest.fixture
def database(tmp_path: Path) -> PlainDatabase:
    return PlainDatabase(tmp_path / "state.db")


def fill(database: PlainDatabase, count: int, salt: str = "", dims: int = DIMS) -> list[int]:
    """Add messages with vectors; returns the ids of the rows with vectors."""
    database.conn.execute("BEGIN")
    ids = []
    for n in range(count):
        msg_id = database.message(f"{salt} {n}")
        cursor = database.conn.execute(
            "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
            "created_at, space_id) VALUES (?, 's1', ?, ?, ?, ?, 1)",
            (msg_id, vectors.pack(unit(f"{salt} {n}", dims)), f"{salt} {n}", dims, random.random()),
        )
        ids.append(int(cursor.lastrowid or 0))
    database.conn.execute("COMMIT")
    return ids


def made(database: PlainDatabase, limit: int = PLENTY, *, use_numpy: bool = True) -> index.Index:
    result = index.Index(str(database.path), 1, DIMS, limit, use_numpy, False)
    result.refresh()
    return result


def cosines(database: PlainDatabase, query: array[float]) -> dict[int, float]:
    rows = database.conn.execute("SELECT id, embedding FROM message_embeddings")
    return {i: math.fsum(map(mul, query, vectors.unpack(blob))) for i, blob in rows}


# Codes


@pytest.mark.parametrize("dims", [1, 3, 64, 896, 3072])
@pytest.mark.parametrize("kind", ["int8", "columns"])
def test_no_similarity_is_above_its_bound_and_none_of_the_best_is_missing(
    kind: str, dims: int
) -> None:
    one = {found.kind: found for found in codes.usable(dims, True)}[kind]
    blobs = [vectors.pack(unit(f"{n % 180}", dims)) for n in range(200)]
    blobs += [vectors.pack([1.0] + [0.0] * (dims - 1)), vectors.pack([-1.0] + [0.0] * (dims - 1))]
    block = codes.Block(array("q", range(202)), array("d", [0.0] * 202), one.encode(blobs))
    for asked in ("5", "other"):
        query = array("f", unit(asked, dims))
        exact = [math.fsum(map(mul, query, vectors.unpack(blob))) for blob in blobs]
        found = one.search([block], query, 10, -1.0)
        assert all(exact[i] <= upper for i, upper in zip(found.ids, found.uppers, strict=True))
        others = [exact[i] for i in range(202) if i not in set(found.ids)]
        assert all(similarity <= found.rest for similarity in others)
        tenth = sorted(exact, reverse=True)[9]
        assert {i for i in range(202) if exact[i] >= tenth} <= set(found.ids)


def test_signs_name_far_more_rows_than_asked_for_and_say_that_there_are_others() -> None:
    one = codes.Bits(64)
    blobs = [vectors.pack(unit(str(n), 64)) for n in range(3000)]
    block = codes.Block(array("q", range(3000)), array("d", [0.0] * 3000), one.encode(blobs))
    query = array("f", unit("q", 64))
    exact = [math.fsum(map(mul, query, vectors.unpack(blob))) for blob in blobs]
    found = one.search([block], query, 10, -1.0)
    best = sorted(range(3000), key=lambda i: -exact[i])[:10]
    assert not one.exact and found.rest == 1.0 and 640 <= len(found.ids) < 1500
    assert len(set(best) & set(found.ids)) == 10


def test_what_is_below_the_floor_is_not_named(database: PlainDatabase) -> None:
    fill(database, 600)
    for use_numpy in (True, False):
        found = made(database, use_numpy=use_numpy).search(array("f", unit("q", DIMS)), 5, 0.9)
        assert len(found.found.ids) == 0 and found.found.rest == codes.NOTHING


# An index over a table


def test_without_numpy_the_codes_are_columns_and_beyond_the_limit_bits(
    database: PlainDatabase,
) -> None:
    fill(database, 500)
    query = array("f", unit("q", DIMS))
    sizes = {kind: index.cost(kind, 500, DIMS) for kind in ("int8", "columns", "bits")}
    assert made(database).search(query, 3, -1.0).kind == "int8"
    assert made(database, use_numpy=False).search(query, 3, -1.0).kind == "columns"
    assert made(database, sizes["columns"] - 1, use_numpy=False).search(query, 3, -1.0).kind == (
        "bits"
    )
    refused = made(database, sizes["bits"] - 1, use_numpy=False)
    assert refused.refused and refused.size() == (0, 0)
    with pytest.raises(LookupError):
        refused.search(query, 3, -1.0)


def test_exact_excludes_estimates(database: PlainDatabase) -> None:
    fill(database, 500)
    limit = index.cost("columns", 500, DIMS) - 1
    exact = index.Index(str(database.path), 1, DIMS, limit, False, exact=True)
    exact.refresh()
    assert exact.refused


def test_new_rows_are_coded_once_there_are_enough_of_them(database: PlainDatabase) -> None:
    old = fill(database, 300)
    codes_here = made(database)
    assert codes_here.covered == old[-1]
    fill(database, 10, "few")
    codes_here.refresh()
    assert codes_here.covered == old[-1]  # whoever asks looks at the ten himself
    new = fill(database, index.FRESH_ROWS, "many")
    codes_here.refresh()
    assert codes_here.covered == new[-1] and codes_here.size()[0] == 310 + index.FRESH_ROWS


def test_ids_given_again_are_noticed_before_they_are_searched(database: PlainDatabase) -> None:
    ids = fill(database, 400)
    codes_here = made(database)
    database.conn.execute("DELETE FROM message_embeddings WHERE id > ?", (ids[-5],))
    assert fill(database, 4, "again") == ids[-4:]
    query = array("f", unit("again 3", DIMS))
    with pytest.raises(LookupError):
        codes_here.search(query, 3, -1.0)
    codes_here.refresh()
    fill(database, index.FRESH_ROWS, "more")
    codes_here.refresh()
    assert codes_here.search(query, 1, -1.0).found.ids[0] == ids[-1]


def test_a_replaced_file_is_another_table(database: PlainDatabase, tmp_path: Path) -> None:
    fill(database, 400)
    codes_here = made(database)
    database.conn.close()
    os.rename(database.path, tmp_path / "old.db")
    other = PlainDatabase(tmp_path / "state.db")
    fill(other, 400, "other")
    query = array("f", unit("other 7", DIMS))
    with pytest.raises(LookupError):
        codes_here.search(query, 3, -1.0)
    codes_here.refresh()
    assert codes_here.search(query, 1, -1.0).found.uppers[0] == pytest.approx(1.0, abs=1e-5)


def test_many_deleted_rows_free_their_memory(
    database: PlainDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "RECOUNT_SECONDS", 0.0)
    ids = fill(database, 3000)
    codes_here = made(database)
    database.conn.execute("DELETE FROM message_embeddings WHERE id <= ?", (ids[2499],))
    codes_here.refresh()
    assert codes_here.size()[0] == 500


# The child process


@pytest.fixture
def failures() -> list[Exception]:
    return []


@pytest.fixture
def source(database: PlainDatabase, failures: list[Exception]) -> Iterator[Coarse]:
    made = Coarse(
        database.path, None, megabytes=64, use_numpy=True, exact=False, note=failures.append
    )
    yield made
    made.close()


def search(
    database: PlainDatabase, source: nearest.Source | None, query: str, k: int = 5
) -> list[int]:
    asked = unit(query, DIMS)
    with database.reader() as conn:
        shape = layout.read(conn)
        found = nearest.nearest(conn, 1, DIMS, asked, k, 0.0, Filters(), shape, source=source)
    return [one.msg_id for one in found]


@pytest.fixture(autouse=True)
def every_store_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "SCANNED", dict.fromkeys(nearest.SCANNED, 0))


def wait_until_ready(database: PlainDatabase, source: Coarse, rows: int) -> None:
    end = time.monotonic() + 60
    while source.state.get("rows") != rows or not source.state["ready"]:
        assert time.monotonic() < end
        time.sleep(0.05)
        search(database, source, "warm")


def test_searches_do_not_wait_for_codes_and_use_them_once_they_are_there(
    database: PlainDatabase, source: Coarse, failures: list[Exception]
) -> None:
    fill(database, 600)
    expected = search(database, None, "query")
    assert search(database, source, "query") == expected
    assert source.state["ready"] is False and source.pid is not None
    wait_until_ready(database, source, 600)
    asked = source.ask(1, unit("query", DIMS), 5, 0.0, None)
    assert asked is not None and asked.exact and asked.made is not None
    assert search(database, source, "query") == expected
    # What is stored later is found before it is coded.
    fill(database, 3, "later")
    assert search(database, source, "later 2", 1) == [603]
    assert failures == []


def test_a_child_that_dies_costs_no_answer(
    database: PlainDatabase, source: Coarse, failures: list[Exception]
) -> None:
    fill(database, 600)
    expected = search(database, source, "query")
    wait_until_ready(database, source, 600)
    assert source.pid is not None
    os.kill(source.pid, signal.SIGSTOP)
    started = time.monotonic()
    assert search(database, source, "query") == expected
    assert time.monotonic() - started < 30 and failures == []  # slow is no failure
    os.kill(source.pid, signal.SIGKILL)
    assert search(database, source, "query") == expected
    wait_until_ready(database, source, 600)
    assert search(database, source, "query") == expected


def test_a_python_that_cannot_start_is_told_and_costs_no_answer(
    database: PlainDatabase, failures: list[Exception]
) -> None:
    fill(database, 600)
    broken = Coarse(
        database.path, None, megabytes=64, use_numpy=True, exact=False,
        note=failures.append, python="/nowhere/python",
    )  # fmt: skip
    assert search(database, broken, "query") == search(database, None, "query")
    assert failures and "cannot be started" in str(failures[0])
    broken.close()


GARBAGE = """
import os, struct, json, sys
def frame(header, body=b""):
    head = json.dumps(header).encode()
    os.write(1, struct.pack("<II", len(head), len(body)) + head + body)
while True:
    size = struct.unpack("<II", os.read(0, 8))
    asked = json.loads(os.read(0, size[0]))
    if asked["do"] == "hello":
        frame({"ok": True})
    else:
        frame(REPLY, BODY)
"""
REPLIES = [
    ("{'ok': True}", "b''"),
    ("{'ok': True, 'covered': 9}", "b''"),
    ("{'ok': True, 'covered': 600, 'kind': 'int8', 'exact': True, 'count': 3, 'rest': -2.0, "
     "'compared': True}", "b'123'"),
    ("{'ok': True, 'covered': 600, 'kind': 'int8', 'exact': True, 'count': 0, "
     "'rest': float('nan'), 'compared': True}", "b''"),
    ("{'ok': True, 'covered': 600, 'kind': 'int8', 'exact': True, 'count': 'x', 'rest': 1.0, "
     "'compared': False}", "b'1'"),
    ("{'ok': False, 'what': 'ValueError'}", "b''"),
    ("[1, 2]", "b''"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "body"), REPLIES)
def test_nonsense_from_the_child_costs_no_answer(
    database: PlainDatabase,
    source: Coarse,
    monkeypatch: pytest.MonkeyPatch,
    reply: str,
    body: str,
) -> None:
    fill(database, 600)
    code = GARBAGE.replace("REPLY", reply).replace("BODY", body)
    monkeypatch.setattr(client, "command", lambda *_args: [sys.executable, "-c", code])
    expected = search(database, None, "query")
    for _ in range(3):
        assert search(database, source, "query") == expected
        time.sleep(0.1)


@pytest.mark.parametrize("use_numpy", [True, False])
def test_wrong_codes_are_made_anew(
    database: PlainDatabase, failures: list[Exception], use_numpy: bool
) -> None:
    """Rows changed in place, which nobody of ours does, are put right once one is met."""
    fill(database, 600)
    source = Coarse(
        database.path, None, megabytes=64, use_numpy=use_numpy, exact=True, note=failures.append
    )
    search(database, source, "query")
    wait_until_ready(database, source, 600)
    best = search(database, None, "query")[0]
    blob = vectors.pack(unit("query", DIMS))
    changed = [best, *({1, 2, 3} - {best})]
    database.conn.execute(
        f"UPDATE message_embeddings SET embedding = ? WHERE msg_id IN {tuple(changed)}", (blob,)
    )
    end = time.monotonic() + 30
    while set(search(database, source, "query", len(changed))) != set(changed):
        assert time.monotonic() < end
        time.sleep(0.1)
    source.close()
    assert failures == []


def test_all_sources_of_one_process_share_one_child(database: PlainDatabase) -> None:
    made = [
        Coarse(database.path, None, megabytes=64, use_numpy=True, exact=False, note=lambda _: None)
        for _ in range(3)
    ]
    fill(database, 600)
    for one in made:
        search(database, one, "query")
    assert len({one.pid for one in made}) == 1
    for one in made:
        one.close()
    assert not [key for key in engine._engines if key.model == engine.SEARCHING]


@pytest.mark.parametrize("way", [nearest.SQLITE_VEC, nearest.PURE_PYTHON])
def test_codes_no_quicker_than_sqlite_vec_are_made_for_very_large_stores_only(
    database: PlainDatabase, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    made = Coarse(
        database.path, None, megabytes=64, use_numpy=False, exact=False, note=lambda _: None
    )
    with database.reader() as conn:
        found = Table(conn, 1, DIMS, array("f", unit("q", DIMS)), Filters(), layout.read(conn))
    found.way = way
    search = nearest._Search(found, 5, 0.0, made)
    largest = nearest.UNAIDED // DIMS
    assert search._helps(largest) == (way == nearest.PURE_PYTHON)
    assert search._helps(largest + 1)
    made.close()


def test_codes_are_begun_before_there_is_a_query(
    database: PlainDatabase, source: Coarse, failures: list[Exception]
) -> None:
    fill(database, 600)
    with database.reader() as conn:
        source.begin(conn, 1, DIMS)
        source.begin(conn, 1, DIMS)
    assert source._begun is not None and source._begun.done.wait(60)
    end = time.monotonic() + 60
    while source.ask(1, unit("q", DIMS), 5, 0.0, None) is None and source.coming:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert source.state["rows"] == 600 and failures == []


def test_a_first_search_that_has_no_time_to_compare_all_waits_for_the_codes(
    database: PlainDatabase, source: Coarse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "PER_SECOND", 1)
    fill(database, 600)
    expected = search(database, None, "query")
    with database.reader() as conn:
        table = Table(conn, 1, DIMS, unit("query", DIMS), Filters(), layout.read(conn))
        table.way, table.deadline = nearest.PURE_PYTHON, time.monotonic() + 60
        found = nearest._Search(table, 5, 0.0, source).run()
    assert [row.msg_id for row in found] == expected
    assert source.state["kind"] == "int8"


def test_nobody_waits_for_codes_that_will_not_come(
    database: PlainDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "PER_SECOND", 1)
    fill(database, 600)
    told: list[Exception] = []
    broken = Coarse(
        database.path,
        None,
        megabytes=64,
        use_numpy=True,
        exact=False,
        note=told.append,
        python="/nowhere/python",
    )
    with database.reader() as conn:
        broken.begin(conn, 1, DIMS)
        table = Table(conn, 1, DIMS, unit("query", DIMS), Filters(), layout.read(conn))
        table.way, table.deadline = nearest.PURE_PYTHON, time.monotonic() + 3600
        assert len(nearest._Search(table, 5, 0.0, broken).run()) == 5
    assert told
    broken.close()
