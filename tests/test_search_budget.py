"""What one search may cost: how much text it reads, and how it ends when its time is over."""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databases import DIMS, SPACE, HostDatabase
from hermes_patch import (
    layout,
    legs,
    postings,
    query,
    relaxed,
    rows,
    scanning,
    search,
    units,
    vectors,
)
from hermes_patch.errors import BudgetExceeded
from hermes_patch.search import Outcome, Request, VectorQuery

EAST, UP = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)
ASKED = "how did we renew the nginx certificate with certbot"
LONG_STATEMENT = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
    "SELECT count(*) FROM (SELECT x FROM n LIMIT 50000000)"
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[HostDatabase]:
    database = HostDatabase(tmp_path / "state.db", "external")
    yield database
    database.conn.close()


@pytest.fixture
def reader(db: HostDatabase) -> Iterator[sqlite3.Connection]:
    conn = db.reader()
    yield conn
    conn.close()


class Clock:
    """A clock that stands still unless it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


class Counted:
    """Stands in for ``Scorer.counts`` and remembers how long every text was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        counts = units.Scorer.counts

        def counting(scorer: units.Scorer, folded: str) -> tuple[list[int], int]:
            self.lengths.append(len(folded))
            return counts(scorer, folded)

        monkeypatch.setattr(units.Scorer, "counts", counting)


def fuse(
    reader: sqlite3.Connection,
    host: list[dict[str, Any]] | None = None,
    vector: tuple[float, ...] | None = None,
    deadline: float | None = None,
    asked: str = ASKED,
) -> Outcome:
    return search.fuse(
        reader,
        host or [],
        Request(asked, limit=50),
        VectorQuery(SPACE, DIMS, vector, 0.3) if vector else None,
        relaxed=True,
        weights=(1.0, 1.0, 1.0),
        rrf_k=60,
        deadline=deadline,
    )


def ids(outcome: Outcome) -> list[int]:
    return [row["id"] for row in outcome.rows]


def filler(chars: int, seed: int = 0) -> str:
    return " ".join(f"w{seed + n:07}" for n in range(chars // 9 + 1))[:chars]


def noise(db: HostDatabase) -> None:
    for number in range(20):
        db.say("noise", f"filler about weather report {number}")


# How much is read


def test_a_search_scores_no_more_text_than_its_budget_the_most_promising_first(
    db: HostDatabase, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = db.say("a", "the nginx certificate was renewed with certbot")
    for number in range(40):
        db.say(f"t{number}", f"nginx certificate {filler(9000, number)}", role="tool")
    noise(db)
    counted = Counted(monkeypatch)
    monkeypatch.setattr(relaxed, "MAX_READ_CHARS", 50_000)
    assert ids(fuse(reader))[0] == wanted
    assert sum(counted.lengths) <= 50_000 + max(counted.lengths)


def test_of_a_long_message_the_beginning_and_the_end_count(
    db: HostDatabase, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "certbot renewed the nginx certificate"
    first = db.say("a", f"{said} {filler(300_000)}", role="tool")
    last = db.say("b", f"{filler(300_000, 9)} {said}", role="tool")
    noise(db)
    counted = Counted(monkeypatch)
    outcome = fuse(reader)
    assert set(ids(outcome)) == {first, last}
    assert max(counted.lengths) <= units.HEAD_CHARS + units.TAIL_CHARS + 1
    assert all(">>>certbot<<<" in row["snippet"] for row in outcome.rows)


def test_no_more_texts_are_held_at_once_than_are_read_in_one_step(
    db: HostDatabase, reader: sqlite3.Connection
) -> None:
    wanted = [db.say("a", f"text {n}") for n in range(3 * rows.IDS_AT_ONCE)]
    statements: list[str] = []
    reader.set_trace_callback(statements.append)
    shape = layout.read(reader)
    before = len(statements)
    loaded = rows.load(reader, wanted, shape)
    next(loaded)
    assert len(statements) == before + 1
    assert len(list(loaded)) == len(wanted) - 1 and len(statements) == before + 3


def test_the_vector_leg_reads_no_more_texts_than_it_returns(
    db: HostDatabase, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(conn: Any, ids: Iterable[int], *args: Any, **more: Any) -> Iterator[rows.Message]:
        wanted = list(ids)
        asked.extend(wanted)
        return original(conn, wanted, *args, **more)

    asked: list[int] = []
    original = rows.load
    db.conn.execute("BEGIN")
    for number in range(4 * legs.DEPTH):
        text = "".join(chr(97 + int(digit)) for digit in str(number))
        db.say(f"s{number}", f"about {text}", vector=(1.0, number / 1000, 0.0))
    db.conn.execute("COMMIT")
    monkeypatch.setattr(rows, "load", load)
    wanted = VectorQuery(SPACE, DIMS, EAST, 0.3)
    shape, parsed = layout.read(reader), query.parse("q")
    hits = legs.vector(reader, shape, parsed, layout.Filters(), wanted, 0.3)
    assert len(hits) == legs.DEPTH
    assert len(asked) < legs.DEPTH + rows.IDS_AT_ONCE


def test_long_texts_that_differ_in_numbers_only_are_kin() -> None:
    log = filler(30_000).replace("w", "line ")
    one, two = f"run 9 of {log} took 12 s", f"run 10 of {log} took 7 s"
    assert legs.kin_of(one) == legs.kin_of(two)
    assert legs.kin_of(one) != legs.kin_of(f"{one} and failed")
    assert len(legs.kin_of(one)) <= 2 * legs.KIN_CHARS + 1


# When the time is over


def test_a_relaxed_leg_without_time_leaves_what_the_vectors_found(
    db: HostDatabase, reader: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(scorer: units.Scorer, folded: str) -> tuple[list[int], int]:
        seen.append(folded)
        clock.now += 2.0
        return counts(scorer, folded)

    counts, seen = units.Scorer.counts, list[str]()
    near = db.say("a", "containers", vector=EAST)
    for number in range(30):
        db.say("b", f"the nginx certificate was renewed with certbot, {number}")
    noise(db)
    monkeypatch.setattr(units.Scorer, "counts", slow)
    monkeypatch.setattr(search, "GRACE", 1e6)
    monkeypatch.setattr(search, "_STEPS", 1)
    outcome = fuse(reader, vector=EAST, deadline=clock.now + 3.0)
    assert ids(outcome) == [near]
    assert outcome.legs == {"exact": "ok", "relaxed": "over budget", "vector": "ok"}
    assert len(seen) == 2


def test_a_slow_vector_leg_leaves_time_for_the_relaxed_one(
    db: HostDatabase, reader: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(blob: bytes) -> array[float]:
        clock.now += 1.0
        return unpack(blob)

    unpack = vectors.unpack
    for number in range(30):
        db.say("a", f"containers {number}", vector=EAST)
    wanted = db.say("b", "the nginx certificate was renewed with certbot")
    monkeypatch.setattr(vectors, "unpack", slow)
    monkeypatch.setattr(scanning, "SLICE", 1)
    outcome = fuse(reader, vector=EAST, deadline=clock.now + 9.0)
    assert ids(outcome) == [wanted]
    assert outcome.legs == {"exact": "ok", "relaxed": "ok", "vector": "over budget"}
    assert clock.now < 1009.0


def test_messages_are_not_read_after_the_deadline(
    db: HostDatabase, reader: sqlite3.Connection, clock: Clock
) -> None:
    wanted = [db.say("a", f"text {n}") for n in range(2 * rows.IDS_AT_ONCE)]
    loaded = rows.load(reader, wanted, layout.read(reader), deadline=clock.now)
    first = [next(loaded) for _ in range(rows.IDS_AT_ONCE)]
    clock.now += 0.1
    with pytest.raises(BudgetExceeded):
        next(loaded)
    assert len(first) == rows.IDS_AT_ONCE


def test_one_long_statement_is_interrupted_at_the_deadline(
    db: HostDatabase, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(conn: sqlite3.Connection, *args: Any) -> Any:
        conn.execute(LONG_STATEMENT).fetchone()
        raise AssertionError("the statement ran to its end")

    near = db.say("a", "containers", vector=EAST)
    monkeypatch.setattr(postings, "find", find)
    monkeypatch.setattr(search, "GRACE", 1e6)
    outcome = fuse(reader, vector=EAST, deadline=time.monotonic() + 0.3)
    assert outcome.legs == {"exact": "ok", "relaxed": "over budget", "vector": "ok"}
    assert ids(outcome) == [near]


def test_long_after_the_deadline_the_hosts_rows_stand(
    db: HostDatabase, reader: sqlite3.Connection
) -> None:
    hit = db.say("a", "nginx certificate renewal with certbot", vector=EAST)
    noise(db)
    message = next(rows.load(reader, [hit], layout.read(reader)))
    host = [rows.host_row(reader, message, "of the host")]
    outcome = fuse(reader, host, EAST, deadline=time.monotonic() - 60.0)
    assert outcome.rows == host
    assert {outcome.legs["relaxed"], outcome.legs["vector"]} == {"over budget"}


@pytest.mark.parametrize("late", [60.0, -60.0])
def test_the_connection_is_free_of_the_deadline_afterwards(
    db: HostDatabase, reader: sqlite3.Connection, clock: Clock, late: float
) -> None:
    db.say("a", "containers", vector=EAST)
    fuse(reader, vector=EAST, deadline=clock.now - late)
    clock.now += 1000.0
    counted = reader.execute(LONG_STATEMENT.replace("50000000", "100000")).fetchone()
    assert counted == (100_000,)


def test_in_time_a_deadline_changes_nothing(db: HostDatabase, reader: sqlite3.Connection) -> None:
    db.say("a", "containers", vector=EAST)
    db.say("b", "the nginx certificate was renewed with certbot")
    noise(db)
    plain = fuse(reader, vector=EAST)
    assert fuse(reader, vector=EAST, deadline=time.monotonic() + 600.0) == plain
    assert len(plain.rows) == 2
