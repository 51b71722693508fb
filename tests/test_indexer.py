from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes import CountingEmbedder, PlainDatabase, unit
from hermes_patch import migrations, spaces, store
from hermes_patch.config import Settings
from hermes_patch.embedders.base import PROBE_TEXT, Item
from hermes_patch.errors import EmbedderUnavailable
from hermes_patch.indexer import VERIFY_SECONDS, BatchResult, Indexer
from hermes_patch.stash import Stash, session_vectors


@pytest.fixture
def database(tmp_path: Path) -> PlainDatabase:
    return PlainDatabase(tmp_path / "state.db")


def drain(indexer: Indexer) -> list[BatchResult]:
    batches = []
    while not (batch := indexer.index_batch()).done:
        batches.append(batch)
        assert len(batches) < 500
    return batches


def test_every_message_gets_its_vector(database: PlainDatabase) -> None:
    ids = [database.message(f"message about topic {n}") for n in range(40)]
    embedder = CountingEmbedder()
    drain(Indexer(database, embedder, Settings()))
    assert database.vectors() == dict.fromkeys(ids, 1)
    assert len(embedder.messages_sent) == 40


def test_a_second_run_sends_nothing(database: PlainDatabase) -> None:
    database.message("the disk is full")
    drain(Indexer(database, CountingEmbedder(), Settings()))
    embedder = CountingEmbedder()
    assert drain(Indexer(database, embedder, Settings())) == []
    assert embedder.sent == []


def test_the_same_text_is_sent_once(database: PlainDatabase) -> None:
    ids = [database.message("restart the gateway", f"s{n}") for n in range(30)]
    embedder = CountingEmbedder()
    drain(Indexer(database, embedder, Settings()))
    assert embedder.messages_sent == ["restart the gateway"]
    assert set(database.vectors()) == set(ids)


def test_a_known_text_is_copied_without_any_request(database: PlainDatabase) -> None:
    database.message("restart the gateway")
    drain(Indexer(database, CountingEmbedder(), Settings()))
    again = database.message("restart the gateway", "s2")
    embedder = CountingEmbedder()
    drain(Indexer(database, embedder, Settings()))
    assert embedder.sent == []
    assert again in database.vectors()


def test_messages_without_meaning_are_skipped_for_good(database: PlainDatabase) -> None:
    for text in ("ok", "", None, "👍"):
        database.message(text)
    embedder = CountingEmbedder()
    indexer = Indexer(database, embedder, Settings())
    drain(indexer)
    assert indexer.index_batch().done
    assert embedder.sent == []


def test_a_bad_item_is_recorded_and_the_rest_is_stored(database: PlainDatabase) -> None:
    good = database.message("the good one here")
    bad = database.message("the bad one here")
    embedder = CountingEmbedder()

    def fail(texts: Sequence[str]) -> list[Item]:
        return [Item(None, "NaN") if "bad" in t else Item(unit(t)) for t in texts]

    embedder.fail = fail
    drain(Indexer(database, embedder, Settings()))
    assert set(database.vectors()) == {good}
    reason = database.conn.execute("SELECT msg_id, reason FROM embedding_skips").fetchone()
    assert reason == (bad, "NaN")


def test_a_failed_message_is_tried_again_later_and_a_bounded_number_of_times(
    database: PlainDatabase,
) -> None:
    database.message("never works out")
    embedder = CountingEmbedder()
    embedder.fail = lambda texts: [
        Item(unit(t)) if t == PROBE_TEXT else Item(None, "500") for t in texts
    ]
    now = [1000.0]
    indexer = Indexer(database, embedder, Settings(), clock=lambda: now[0])
    for _ in range(20):
        drain(indexer)
        now[0] += 1e6
    assert len(embedder.messages_sent) == store.MAX_ATTEMPTS


def test_an_embedder_that_is_down_leaves_everything_pending(database: PlainDatabase) -> None:
    database.message("the disk is full")
    embedder = CountingEmbedder()

    def fail(texts: Sequence[str]) -> None:
        raise EmbedderUnavailable("down")

    embedder.fail = fail
    with pytest.raises(EmbedderUnavailable):
        Indexer(database, embedder, Settings()).index_batch()
    assert drain(Indexer(database, CountingEmbedder(), Settings()))[0].stored == 1


def test_texts_that_were_not_tried_stay_pending_and_the_others_are_stored(
    database: PlainDatabase,
) -> None:
    done = database.message("the first message here")
    database.message("the second message here")
    embedder = CountingEmbedder()
    embedder.fail = lambda texts: [
        Item(None, "not tried: gone") if "second" in t else Item(unit(t)) for t in texts
    ]
    indexer = Indexer(database, embedder, Settings())
    with pytest.raises(EmbedderUnavailable, match="^gone$"):
        indexer.index_batch()
    assert set(database.vectors()) == {done}
    assert not database.conn.execute("SELECT * FROM embedding_skips").fetchall()


def test_no_transaction_is_open_while_texts_are_embedded(database: PlainDatabase) -> None:
    database.message("the disk is full")
    embedder = CountingEmbedder()
    seen: list[bool] = []

    def look(texts: Sequence[str]) -> None:
        database.conn.execute("BEGIN IMMEDIATE")  # fails when somebody else is writing
        seen.append(database.conn.in_transaction)
        database.conn.rollback()

    embedder.fail = look
    drain(Indexer(database, embedder, Settings()))
    assert seen == [True, True]


def test_a_text_edited_while_it_was_embedded_gets_no_stale_vector(
    database: PlainDatabase,
) -> None:
    msg_id = database.message("the first wording")
    embedder = CountingEmbedder()

    def edit(texts: Sequence[str]) -> None:
        if "the first wording" in texts:
            database.conn.execute("UPDATE messages SET content = 'the second wording'")

    embedder.fail = edit
    drain(Indexer(database, embedder, Settings()))
    stored = database.conn.execute("SELECT msg_id, text_hash FROM message_embeddings").fetchall()
    from hermes_patch.text import text_hash

    assert stored == [(msg_id, text_hash("the second wording"))]


def test_another_engine_behind_the_same_name_is_a_new_space(database: PlainDatabase) -> None:
    msg_id = database.message("the disk is full")
    drain(Indexer(database, CountingEmbedder(), Settings()))
    database.message("a later message here")
    drain(Indexer(database, CountingEmbedder(salt="other"), Settings()))
    assert len(spaces.find(database.conn)) == 2
    assert database.vectors()[msg_id] == 2


def test_vectors_of_a_hand_made_table_are_taken_over_when_they_can_be_reproduced(
    tmp_path: Path,
) -> None:
    from hermes_patch import migrations
    from hermes_patch.vectors import pack
    from test_migrations import GUIDE_TABLE

    database = PlainDatabase(tmp_path / "state.db", migrate=False)
    database.conn.execute(GUIDE_TABLE)
    for n in range(5):
        msg_id = database.message(f"an older message number {n}")
        database.conn.execute(
            "INSERT INTO message_embeddings (msg_id, session_id, embedding) VALUES (?, 's1', ?)",
            (msg_id, pack(unit(f"an older message number {n}"))),
        )
    migrations.apply(database.conn)
    database.message("one new message")
    embedder = CountingEmbedder()
    drain(Indexer(database, embedder, Settings()))
    assert len(spaces.find(database.conn)) == 1
    assert len(embedder.messages_sent) == 2  # one old text to compare, and the new one
    assert len(database.vectors()) == 6


def test_what_could_not_be_written_is_not_sent_again(
    database: PlainDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        database.message(f"message about topic {n}")
    embedder = CountingEmbedder()
    indexer = Indexer(database, embedder, Settings())
    write = database.write

    def locked(change: Any) -> Any:
        if embedder.messages_sent:
            raise sqlite3.OperationalError("database is locked")
        return write(change)

    monkeypatch.setattr(database, "write", locked)
    with pytest.raises(sqlite3.OperationalError):
        indexer.index_batch()
    monkeypatch.setattr(database, "write", write)
    drain(indexer)
    assert len(embedder.messages_sent) == 5 == len(database.vectors())


def test_replaced_rows_take_their_vectors_from_the_stash(database: PlainDatabase) -> None:
    for n in range(20):
        database.message(f"message about topic {n}")
    drain(Indexer(database, CountingEmbedder(), Settings()))
    stash = Stash()
    with database.reader() as conn:
        stash.keep(session_vectors(conn, "s1", 1000))
    database.conn.execute("DELETE FROM messages")
    assert database.vectors() == {}
    for n in range(20):
        database.message(f"message about topic {n if n else 'changed'}")
    embedder = CountingEmbedder()
    drain(Indexer(database, embedder, Settings(), stash))
    assert embedder.messages_sent == ["message about topic changed"]
    assert len(database.vectors()) == 20


def test_a_long_message_has_a_vector_for_every_chunk(database: PlainDatabase) -> None:
    msg_id = database.message("A sentence about disks. " * 400)
    drain(Indexer(database, CountingEmbedder(), Settings(max_tokens=100)))
    assert database.vectors()[msg_id] > 10


def test_a_huge_message_does_not_keep_the_others_waiting(database: PlainDatabase) -> None:
    small = [database.message(f"message about topic {n}") for n in range(40)]
    huge = database.message("a sentence about disks. " * 9000)
    indexer = Indexer(database, CountingEmbedder(), Settings())
    stored: list[set[int]] = []
    while not indexer.index_batch().done:
        stored.append(set(database.vectors()))
    assert set(small) <= stored[-2] and huge not in stored[-2]
    assert huge in stored[-1]


def test_what_the_beat_raises_ends_a_long_batch_with_nothing_stored(
    database: PlainDatabase,
) -> None:
    database.message("a sentence about disks. " * 9000)
    embedder = CountingEmbedder()

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Indexer(database, embedder, Settings()).index_batch(beat=stop)
    assert len(embedder.messages_sent) == embedder.batch_size
    assert database.vectors() == {}


def test_an_engine_that_changes_while_we_run_gets_a_space_of_its_own(tmp_path: Path) -> None:
    database, embedder = PlainDatabase(tmp_path / "state.db"), CountingEmbedder()
    indexer = Indexer(database, embedder, Settings())
    indexer._ticks = lambda: ticks[0]
    ticks = [0.0]
    first = database.message("the first text")
    indexer.index_batch()
    embedder.salt = "another engine"
    ticks[0] += VERIFY_SECONDS + 1
    second = database.message("the second text")
    indexer.index_batch()
    query = "SELECT DISTINCT space_id FROM message_embeddings WHERE msg_id = ?"
    of_first = database.conn.execute(query, (first,)).fetchall()
    of_second = database.conn.execute(query, (second,)).fetchall()
    assert (1,) in of_first and of_second == [(2,)]


def test_after_a_failure_the_server_is_asked_again_who_it_is(tmp_path: Path) -> None:
    database, embedder = PlainDatabase(tmp_path / "state.db"), CountingEmbedder()
    indexer = Indexer(database, embedder, Settings())
    database.message("the first text")
    indexer.index_batch()

    def fail(texts: Sequence[str]) -> None:
        raise EmbedderUnavailable("restarting")

    embedder.fail = fail
    database.message("the second text")
    with pytest.raises(EmbedderUnavailable):
        indexer.index_batch()
    embedder.fail = lambda texts: None
    embedder.salt = "another engine"
    indexer.index_batch()
    spaces_used = database.conn.execute("SELECT count(*) FROM embedding_spaces").fetchone()
    assert spaces_used == (2,)


def test_vectors_whose_space_was_lost_are_not_taken_for_those_of_a_new_one(tmp_path: Path) -> None:
    database = PlainDatabase(tmp_path / "state.db")
    old = database.message("of the old model")
    Indexer(database, CountingEmbedder(), Settings()).index_batch()
    database.conn.execute("DROP TABLE embedding_spaces")
    migrations.apply(database.conn)
    assert database.vectors() == {}
    embedder = CountingEmbedder(salt="another engine")
    Indexer(database, embedder, Settings()).index_batch()
    assert embedder.messages_sent == ["of the old model"] and set(database.vectors()) == {old}


def test_a_probe_that_cannot_be_read_does_not_stop_us(tmp_path: Path) -> None:
    database = PlainDatabase(tmp_path / "state.db")
    database.message("the first text")
    Indexer(database, CountingEmbedder(), Settings()).index_batch()
    database.conn.execute("UPDATE embedding_spaces SET probe = x'0102'")
    new = database.message("the second text")
    Indexer(database, CountingEmbedder(), Settings()).index_batch()
    assert new in database.vectors()
