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
