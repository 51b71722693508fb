"""Real-time embedding: one daemon thread per process and database.

``wake()`` is all that ever runs on a host's thread: it sets an event. The thread waits for
quiet, takes the lease, lets the indexer work off what is pending above the watermark, and
lets go. What is pending is derived from the tables, so messages of unpatched processes and
of a killed predecessor are found the same way.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from . import layout, migrations, store
from .engine import Engine
from .errors import EmbedderUnavailable, HostError
from .guard import log

DEBOUNCE = 0.3
LEASE_SECONDS = 30.0
LEASE_POLL = 2.0
BACKOFF = (2.0, 300.0)
FLUSH_SECONDS = 2.0
PAUSE = 0.1
"""Least pause between two batches: SQLite's write lock is not fair to other writers."""


class Worker:
    """Embeds what is new in one database. All times in seconds."""

    def __init__(self, engine: Engine, applied_at: float | None = None) -> None:
        self._engine = engine
        self._applied_at = applied_at
        self._event = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None
        self._failures = 0
        self._seen = -1
        self._renewed = 0.0
        self._reported: list[dict[str, Any]] = []
        self.owner = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.idle = threading.Event()

    def wake(self) -> None:
        """Say that something may have been written. Never blocks, never raises."""
        if not self._event.is_set():
            self.idle.clear()
            self._event.set()
            if self._thread is None:
                self._start()

    def stop(self, flush: float = FLUSH_SECONDS) -> None:
        """Finish what can be finished within *flush* seconds and end the thread."""
        self._deadline = time.monotonic() + flush
        self._stopping.set()
        self._event.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(flush + 0.2)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="hermes-patch worker", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        wait: float | None = None
        while True:
            if not self._event.wait(wait):
                self._seen = -1  # time for another try of what failed
            if not self._stopping.is_set():
                self._stopping.wait(DEBOUNCE)
            self._event.clear()
            wait = self._attempt()
            self._report()
            if self._stopping.is_set():
                return
            if wait is None and not self._event.is_set():
                self.idle.set()

    def _attempt(self) -> float | None:
        """Do what is pending; return when to look again by ourselves, None for "when woken"."""
        guard = self._engine.guard
        try:
            wait = self._drain()
        except (EmbedderUnavailable, sqlite3.OperationalError) as error:
            guard.note("realtime", error)
            return self._backoff(getattr(error, "retry_after", None))
        except HostError:
            return None  # nobody has the database open any more; the next start continues
        except Exception as error:
            guard.note("realtime", error)
            return self._backoff(60.0)
        self._failures = 0
        guard.succeeded("realtime")
        return wait

    def _report(self) -> None:
        """Leave our failures where ``hermes-patch status`` of another process finds them."""
        found = [vars(failure) for failure in self._engine.guard.failures()]
        if not found or found == self._reported:
            return
        try:
            text = json.dumps(found)
            self._engine.write(lambda conn: store.set_state(conn, "failures", text))
            self._reported = found
        except Exception as error:  # the database itself may be what failed
            log.debug("failures were not recorded: %s", type(error).__name__)

    def _backoff(self, at_least: float | None) -> float:
        first, most = BACKOFF
        pause = min(most, first * 2.0 ** min(self._failures, 10)) * random.uniform(0.8, 1.2)
        self._failures += 1
        self._seen = -1
        return max(pause, at_least or 0.0)

    def _drain(self) -> float | None:
        engine = self._engine
        if not (engine.owned and engine.settings.enabled and engine.settings.realtime):
            return None
        with engine.reader() as conn:
            ready = store.exists(conn) and store.state(conn, "watermark") is not None
            newest = _newest(conn)
        if not ready:
            engine.write(self._prepare)
        elif engine.stale:
            self._forget_stale()
        elif newest == self._seen:
            return None
        with engine.reader() as conn:
            mark = int(store.state(conn, "watermark") or 0)
            if not self._anything(conn, mark):
                self._seen = newest
                return _next_retry(conn)
            holder = store.lease_holder(conn, time.time())
        if holder not in (None, self.owner) or not engine.write(self._lease):
            return LEASE_POLL
        try:
            self._work_off(mark)
        finally:
            engine.write(lambda conn: store.release_lease(conn, self.owner))
        return 0.0 if self._stopping.is_set() else DEBOUNCE

    def _forget_stale(self) -> None:
        """Make messages pending again that a search found edited."""
        edited = [self._engine.stale.pop() for _ in range(len(self._engine.stale))]
        self._engine.write(lambda conn: store.forget(conn, edited))

    def _work_off(self, mark: int) -> None:
        self._renewed = time.monotonic()
        pause = max(PAUSE, self._engine.settings.pause)
        while not self._out_of_time():
            if self._engine.indexer.index_batch(above=mark, beat=self._beat).done:
                return
            if not self._stopping.is_set():
                self._stopping.wait(pause)

    def _beat(self) -> None:
        """Keep the lease; give up when the time is over or somebody else has it."""
        if self._out_of_time():
            raise HostError("this process ends")
        if time.monotonic() - self._renewed > LEASE_SECONDS / 3:
            if not self._engine.write(self._lease):
                raise HostError("another process indexes this database")
            self._renewed = time.monotonic()

    def _out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _anything(self, conn: sqlite3.Connection, mark: int) -> bool:
        space = self._engine.indexer.space(conn)
        roles = self._engine.settings.roles
        space_id = space.id if space else None
        return bool(store.pending(conn, layout.read(conn), space_id, roles, above=mark, limit=1))

    def _lease(self, conn: sqlite3.Connection) -> bool:
        return store.acquire_lease(conn, self.owner, LEASE_SECONDS, time.time())

    def _prepare(self, conn: sqlite3.Connection) -> None:
        migrations.apply(conn)
        migrations.set_watermark(conn, before=self._applied_at)


def _newest(conn: sqlite3.Connection) -> int:
    row = conn.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").fetchone()
    return int(row[0]) if row else 0


def _next_retry(conn: sqlite3.Connection) -> float | None:
    row = conn.execute(
        "SELECT min(next_try) FROM embedding_skips WHERE next_try IS NOT NULL"
    ).fetchone()
    return None if row[0] is None else max(1.0, float(row[0]) - time.time())


class Registry:
    """The workers of this process, by engine; forgotten in a forked child."""

    def __init__(self, make: Callable[[Engine], Worker] = Worker) -> None:
        self._make = make
        self._workers: dict[int, Worker] = {}
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def of(self, engine: Engine) -> Worker:
        """Return the worker of *engine*, made when it is asked for first."""
        worker = self._workers.get(id(engine))
        if worker is None:
            with self._lock:
                worker = self._workers.setdefault(id(engine), self._make(engine))
        return worker

    def forget(self) -> None:
        """Drop all workers without stopping them: their threads stayed in the parent."""
        self._lock = threading.Lock()
        self._workers = {}

    def stop(self, flush: float = FLUSH_SECONDS) -> None:
        """Stop all workers; bounded by *flush* seconds each."""
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.stop(flush)
