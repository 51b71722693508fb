from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes import CountingEmbedder, PlainDatabase
from hermes_patch import lease, store, sweeper, worker
from hermes_patch.config import Settings
from hermes_patch.engine import Engine
from hermes_patch.errors import EmbedderUnavailable
from hermes_patch.worker import Worker


class Handle:
    """The two attributes of a SessionDB that the engine uses."""

    def __init__(self, path: Path) -> None:
        self._conn: sqlite3.Connection | None = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=5
        )
        self._conn.execute("PRAGMA foreign_keys=ON")
        self._lock = threading.Lock()
        self.threads: set[str] = set()

    def _execute_write(self, change: Callable[[sqlite3.Connection], Any]) -> Any:
        self.threads.add(threading.current_thread().name)
        assert self._conn is not None
        with self._lock:
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                result = change(self._conn)
            except BaseException:
                self._conn.rollback()
                raise
            self._conn.commit()
            return result


class Running:
    """A database, its engine with a counting embedder, and a worker."""

    def __init__(self, path: Path, embedder: CountingEmbedder, **settings: Any) -> None:
        self.database = PlainDatabase(path, migrate=False)
        self.embedder = embedder
        self.engine = Engine(path, lambda: Settings(**settings), owned=True)
        self.engine._made["embedder"] = embedder
        self.handle = Handle(path)
        self.engine.attach(self.handle)
        self.worker = Worker(self.engine, applied_at=50.0)

    def settle(self) -> None:
        self.worker.wake()
        assert self.worker.idle.wait(30), self.engine.guard.failures()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "DEBOUNCE", 0.01)
    monkeypatch.setattr(worker, "PAUSE", 0.0)
    monkeypatch.setattr(worker, "LEASE_POLL", 0.05)
    monkeypatch.setattr(worker, "BACKOFF", (0.05, 0.2))
    monkeypatch.setattr(sweeper, "RECENT_SECONDS", 0.0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "state.db", CountingEmbedder())
    yield made
    made.worker.stop()


def test_new_messages_get_vectors_and_history_does_not(running: Running) -> None:
    running.database.message("from before the patch", at=10.0)
    new = running.database.message("from after the patch", at=100.0)
    running.settle()
    assert set(running.database.vectors()) == {new}
    assert running.embedder.messages_sent == ["from after the patch"]


def test_a_burst_of_messages_is_embedded_whole(running: Running) -> None:
    for n in range(100):
        running.database.message(f"message about topic {n}", at=100.0)
        running.worker.wake()
    running.settle()
    assert len(running.database.vectors()) == 100


def test_unrelated_writes_cost_no_request_and_no_write(running: Running) -> None:
    running.database.message("the disk is full", at=100.0)
    running.settle()
    before = (running.embedder.requests, running.database.conn.execute("PRAGMA data_version"))
    version = before[1].fetchone()
    for _ in range(5):
        running.settle()
    assert running.embedder.requests == before[0]
    assert running.database.conn.execute("PRAGMA data_version").fetchone() == version


def test_all_our_sql_runs_on_our_thread(running: Running) -> None:
    running.database.message("the disk is full", at=100.0)
    running.settle()
    assert running.handle.threads == {"hermes-patch worker"}


def test_nothing_is_lost_while_the_embedder_is_down(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    up = threading.Event()

    def fail(texts: Sequence[str]) -> None:
        if not up.is_set():
            raise EmbedderUnavailable("down")

    embedder.fail = fail
    running = Running(tmp_path / "state.db", embedder)
    for n in range(20):
        running.database.message(f"message about topic {n}", at=100.0)
        running.worker.wake()
    deadline = time.monotonic() + 20
    while embedder.requests < 2 and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert running.database.conn.execute("SELECT count(*) FROM messages").fetchone() == (20,)
    up.set()
    assert running.worker.idle.wait(30)
    running.worker.stop()
    assert len(running.database.vectors()) == 20


def test_failures_are_left_where_status_finds_them(tmp_path: Path) -> None:
    embedder = CountingEmbedder()

    def fail(texts: Sequence[str]) -> None:
        raise EmbedderUnavailable("no answer from 127.0.0.1:9")

    embedder.fail = fail
    running = Running(tmp_path / "state.db", embedder)
    running.database.message("the disk is full", at=100.0)
    running.worker.wake()
    deadline = time.monotonic() + 20
    found = None
    while found is None and time.monotonic() < deadline:
        threading.Event().wait(0.02)
        if store.exists(running.database.conn):
            found = store.state(running.database.conn, "failures")
    running.worker.stop()
    assert found is not None and "no answer from 127.0.0.1:9" in found


def test_two_workers_do_not_pay_twice(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first = Running(path, CountingEmbedder())
    second = Worker(first.engine, applied_at=50.0)
    for n in range(60):
        first.database.message(f"message about topic {n}", at=100.0)
        first.worker.wake()
        second.wake()
    first.settle()
    second.wake()
    assert second.idle.wait(30)
    first.worker.stop()
    second.stop()
    assert len(first.database.vectors()) == 60
    assert sorted(first.embedder.messages_sent) == sorted(set(first.embedder.messages_sent))


def test_a_dead_owners_lease_is_taken_over(running: Running) -> None:
    running.settle()
    conn = running.database.conn
    lease.acquire(conn, "killed", 0.2, time.time())
    new = running.database.message("the disk is full", at=100.0)
    running.settle()
    assert set(running.database.vectors()) == {new}


def test_stop_flushes_what_is_pending(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.settle()
    monkeypatch.setattr(worker, "DEBOUNCE", 30.0)
    new = running.database.message("written just before the exit", at=100.0)
    running.worker.wake()
    running.worker.stop(flush=10.0)
    assert new in running.database.vectors()


def test_stop_is_bounded_when_the_embedder_hangs(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    hanging, release = threading.Event(), threading.Event()

    def hang(texts: Sequence[str]) -> None:
        hanging.set()
        release.wait(60)

    embedder.fail = hang
    running = Running(tmp_path / "state.db", embedder)
    running.database.message("the disk is full", at=100.0)
    running.worker.wake()
    assert hanging.wait(20)
    stopped = threading.Thread(target=running.worker.stop, args=(0.1,))
    stopped.start()
    stopped.join(20)
    alive = stopped.is_alive()
    release.set()
    assert not alive


def test_a_closed_handle_is_never_written_through(running: Running) -> None:
    running.settle()
    assert running.handle._conn is not None
    running.handle._conn.close()
    running.handle._conn = None
    running.handle.threads.clear()
    running.database.message("the disk is full", at=100.0)
    running.settle()
    assert running.handle.threads == set()


def test_another_profiles_database_is_never_written(tmp_path: Path) -> None:
    running = Running(tmp_path / "state.db", CountingEmbedder())
    running.engine.owned = False
    running.database.message("the disk is full", at=100.0)
    running.settle()
    running.worker.stop()
    assert not store.exists(running.database.conn)


def test_realtime_false_leaves_everything_to_the_backfill(tmp_path: Path) -> None:
    running = Running(tmp_path / "state.db", CountingEmbedder(), realtime=False)
    running.database.message("the disk is full", at=100.0)
    running.settle()
    running.worker.stop()
    assert running.embedder.sent == []


def test_a_message_that_a_search_found_edited_gets_the_vector_of_its_new_text(
    running: Running,
) -> None:
    msg_id = running.database.message("the first wording", at=100.0)
    running.settle()
    running.database.conn.execute("UPDATE messages SET content = 'the second wording'")
    running.engine.stale.add(msg_id)
    running.settle()
    assert running.embedder.messages_sent == ["the first wording", "the second wording"]
    assert running.database.vectors() == {msg_id: 1}


def test_an_edited_message_is_embedded_anew_without_any_search_the_history_too(
    running: Running,
) -> None:
    old = running.database.message("from before the patch", at=10.0)
    new = running.database.message("from after the patch", at=100.0)
    running.settle()
    while not running.engine.indexer.index_batch().done:
        pass
    for msg_id in (old, new):
        edit = "UPDATE messages SET content = 'edited ' || content WHERE id = ?"
        running.database.conn.execute(edit, (msg_id,))
    running.settle()
    assert running.database.vectors() == {old: 1, new: 1}
    assert "edited from before the patch" in running.embedder.messages_sent
    assert "edited from after the patch" in running.embedder.messages_sent


def test_rows_of_deleted_messages_are_swept(running: Running) -> None:
    kept = running.database.message("this one stays", at=100.0)
    gone = running.database.message("this one goes", at=100.0)
    running.settle()
    other = sqlite3.connect(running.database.path, isolation_level=None)
    other.execute("DELETE FROM messages WHERE id = ?", (gone,))
    other.close()
    running.settle()
    assert running.database.vectors() == {kept: 1}


@pytest.mark.parametrize("value", ["abc", "-5", "", "1.5"])
def test_a_watermark_that_cannot_be_read_is_drawn_anew(running: Running, value: str) -> None:
    running.database.message("from before the patch", at=10.0)
    running.settle()
    set_value = "UPDATE embedding_state SET value = ? WHERE key = 'watermark'"
    running.database.conn.execute(set_value, (value,))
    new = running.database.message("from after the patch", at=100.0)
    running.settle()
    assert set(running.database.vectors()) == {new}


@pytest.mark.parametrize("value", ["", "[]", '{"began": 1, "table": "x", "after": 0}', '{"a": 1}'])
def test_a_place_of_the_sweep_that_cannot_be_read_is_the_beginning(
    running: Running, value: str
) -> None:
    running.settle()
    statement = "INSERT OR REPLACE INTO embedding_state VALUES ('sweep', ?)"
    running.database.conn.execute(statement, (value,))
    new = running.database.message("the disk is full", at=100.0)
    running.settle()
    assert set(running.database.vectors()) == {new}
    assert running.engine.guard.failures() == []


def test_a_lease_that_a_wrong_clock_made_does_not_stop_us(running: Running) -> None:
    running.settle()
    year = time.time() + 365 * 86400
    statement = "INSERT OR REPLACE INTO embedding_lease VALUES (1, '1234-abcdef@elsewhere', ?)"
    running.database.conn.execute(statement, (year,))
    new = running.database.message("the disk is full", at=100.0)
    running.settle()
    assert set(running.database.vectors()) == {new}


def test_a_retry_that_a_wrong_clock_put_off_for_years_is_made_now(running: Running) -> None:
    running.settle()
    new = running.database.message("the disk is full", at=100.0)
    running.database.conn.execute(
        "INSERT INTO embedding_skips VALUES (?, 1, 'whatever', 'once busy', 1, ?)",
        (new, time.time() + 8 * 365 * 86400),
    )
    running.settle()
    assert set(running.database.vectors()) == {new}


def test_nothing_is_done_once_the_plugin_was_taken_away(tmp_path: Path) -> None:
    running = Running(tmp_path / "state.db", CountingEmbedder())
    running.worker = Worker(running.engine, applied_at=50.0, allowed=lambda: False)
    running.database.message("the disk is full", at=100.0)
    running.settle()
    running.worker.stop()
    assert running.embedder.sent == [] and not store.exists(running.database.conn)


def test_a_database_moved_away_is_not_written_and_nothing_is_sent_for_it(tmp_path: Path) -> None:
    running = Running(tmp_path / "state.db", CountingEmbedder())
    running.settle()
    (tmp_path / "state.db").rename(tmp_path / "moved.db")
    other = PlainDatabase(tmp_path / "state.db", migrate=False)
    other.message("of the other database", at=100.0)
    running.settle()
    running.worker.stop()
    assert running.embedder.messages_sent == []
    assert not store.exists(other.conn)
    [failure] = running.engine.guard.failures()
    assert "restart Hermes" in failure.message


def test_whatever_is_thrown_the_worker_lives_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BROKEN_SECONDS", 0.05)
    real, thrown = running.worker._attempt, [SystemExit("no"), MemoryError(), ValueError("x")]

    def attempt() -> float | None:
        if thrown:
            raise thrown.pop()
        return real()

    monkeypatch.setattr(running.worker, "_attempt", attempt)
    new = running.database.message("the disk is full", at=100.0)
    running.settle()
    assert set(running.database.vectors()) == {new}
    assert thrown == []
