from __future__ import annotations

import multiprocessing
import sqlite3
import struct
from pathlib import Path

import pytest

from fakes import HOST_SCHEMA, PlainDatabase, unit
from hermes_patch import migrations, spaces, store, vectors
from hermes_patch.errors import SchemaError

GUIDE_TABLE = """CREATE TABLE message_embeddings (id INTEGER PRIMARY KEY AUTOINCREMENT,
    msg_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE, session_id TEXT NOT NULL,
    embedding BLOB NOT NULL, text_hash TEXT, dims INTEGER, created_at REAL, UNIQUE (msg_id))"""


def dump(conn: sqlite3.Connection) -> list[str]:
    return list(conn.iterdump())


def version(conn: sqlite3.Connection) -> int:
    return int(conn.execute("SELECT version FROM schema_version").fetchone()[0])


@pytest.fixture
def database(tmp_path: Path) -> PlainDatabase:
    return PlainDatabase(tmp_path / "state.db", migrate=False)


def test_a_second_run_changes_nothing(database: PlainDatabase) -> None:
    assert migrations.apply(database.conn) == ["v7_message_embeddings"]
    before = dump(database.conn)
    assert migrations.apply(database.conn) == []
    assert dump(database.conn) == before


def test_no_trigger_is_made(database: PlainDatabase) -> None:
    migrations.apply(database.conn)
    assert not database.conn.execute("SELECT 1 FROM sqlite_master WHERE type='trigger'").fetchall()


def test_schema_6_becomes_7_where_it_is_ours_to_set(database: PlainDatabase) -> None:
    migrations.apply(database.conn, owns_schema_version=True)
    assert version(database.conn) == 7


def test_a_higher_schema_version_stays(database: PlainDatabase) -> None:
    database.conn.execute("UPDATE schema_version SET version = 22")
    migrations.apply(database.conn, owns_schema_version=True)
    assert version(database.conn) == 22


def test_schema_6_stays_when_the_host_would_migrate_it_itself(database: PlainDatabase) -> None:
    migrations.apply(database.conn)
    assert version(database.conn) == 6


def test_purge_leaves_the_database_as_it_was(database: PlainDatabase) -> None:
    database.message("disk full")
    before = dump(database.conn)
    migrations.apply(database.conn, owns_schema_version=True)
    migrations.set_watermark(database.conn)
    migrations.purge(database.conn, host_schema_version=6)
    assert dump(database.conn) == before


def test_purge_keeps_a_version_that_somebody_raised_since(database: PlainDatabase) -> None:
    migrations.apply(database.conn, owns_schema_version=True)
    database.conn.execute("UPDATE schema_version SET version = 11")
    migrations.purge(database.conn, host_schema_version=11)
    assert version(database.conn) == 11


def test_a_failure_in_the_middle_leaves_no_trace(
    database: PlainDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(conn: sqlite3.Connection) -> None:
        conn.execute("CREATE TABLE half_done (id)")
        raise RuntimeError("stop")

    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, ("next", broken)))
    before = dump(database.conn)
    with pytest.raises(RuntimeError):
        migrations.apply(database.conn)
    assert dump(database.conn) == before


def test_a_lost_table_is_made_again(database: PlainDatabase) -> None:
    migrations.apply(database.conn)
    database.conn.execute("DROP TABLE embedding_skips")
    assert migrations.apply(database.conn) == ["v7_message_embeddings"]
    assert store.exists(database.conn)


def test_a_table_made_by_hand_is_adopted_with_its_vectors(database: PlainDatabase) -> None:
    first = database.message("clean the disk")
    second = database.message("磁盘清理")
    database.conn.execute(GUIDE_TABLE)
    for msg_id in (first, second):
        values = [3.0 * v for v in unit(str(msg_id), 16)]
        database.conn.execute(
            "INSERT INTO message_embeddings (msg_id, session_id, embedding) VALUES (?, 's1', ?)",
            (msg_id, struct.pack("<16f", *values)),
        )
    migrations.apply(database.conn)
    assert database.vectors() == {first: 1, second: 1}
    space = spaces.find(database.conn)[0]
    assert (space.provider, space.dims, space.probe) == ("guide", 16, None)
    blob = database.conn.execute("SELECT embedding FROM message_embeddings").fetchone()[0]
    assert vectors.cosine(vectors.unpack(blob), unit(str(first), 16)) == pytest.approx(1, abs=1e-6)


def test_purge_gives_a_table_made_by_hand_back(database: PlainDatabase) -> None:
    msg_id = database.message("clean the disk")
    database.conn.execute(GUIDE_TABLE)
    database.conn.execute("CREATE INDEX mine ON message_embeddings(session_id)")
    schema = "SELECT sql FROM sqlite_master WHERE tbl_name = 'message_embeddings' ORDER BY name"
    before = database.conn.execute(schema).fetchall()
    database.conn.execute(
        "INSERT INTO message_embeddings (msg_id, session_id, embedding) VALUES (?, 's1', ?)",
        (msg_id, vectors.pack(unit("a"))),
    )
    migrations.apply(database.conn)
    migrations.purge(database.conn)
    assert database.conn.execute(schema).fetchall() == before
    stored = database.conn.execute("SELECT msg_id, embedding FROM message_embeddings").fetchall()
    assert [row[0] for row in stored] == [msg_id]
    assert vectors.cosine(vectors.unpack(stored[0][1]), unit("a")) == pytest.approx(1, abs=1e-6)


def test_a_foreign_table_of_our_name_is_refused_untouched(database: PlainDatabase) -> None:
    database.conn.execute("CREATE TABLE message_embeddings (uuid TEXT, payload TEXT)")
    before = dump(database.conn)
    with pytest.raises(SchemaError, match="uuid"):
        migrations.apply(database.conn)
    assert dump(database.conn) == before


def test_the_watermark_is_set_once(database: PlainDatabase) -> None:
    migrations.apply(database.conn)
    mark = database.message("before")
    assert migrations.set_watermark(database.conn) == mark
    database.message("after")
    assert migrations.set_watermark(database.conn) == mark


def test_messages_written_since_apply_are_no_history(database: PlainDatabase) -> None:
    migrations.apply(database.conn)
    old = database.message("old", at=100.0)
    database.message("new", at=200.0)
    assert migrations.set_watermark(database.conn, before=150.0) == old


def test_a_forgotten_watermark_is_drawn_anew(database: PlainDatabase) -> None:
    migrations.apply(database.conn)
    migrations.set_watermark(database.conn)
    later = database.message("written while the patch was not applied")
    migrations.forget_watermark(database.conn)
    assert migrations.set_watermark(database.conn) == later


def _apply(path: str, barrier: multiprocessing.synchronize.Barrier) -> None:
    conn = sqlite3.connect(path, isolation_level=None, timeout=30)
    barrier.wait()
    migrations.apply(conn, owns_schema_version=True)
    conn.close()


def test_two_processes_at_once_apply_it_once(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    conn = sqlite3.connect(path, isolation_level=None)
    conn.executescript("PRAGMA journal_mode=WAL;" + HOST_SCHEMA)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_apply, args=(str(path), barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert migrations.applied(conn) == ["v7_message_embeddings"]
    assert version(conn) == 7
