"""Real-time embedding: one daemon thread per process and database.

``wake()`` is all that ever runs on a host's thread: it sets an event. The thread waits for
quiet, takes the lease, lets the indexer work off what is pending above the watermark, and
lets go. What is pending is derived from the tables, so messages of unpatched processes and
of a killed predecessor are found the same way. With nothing new it looks for edits and
deletions.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from . import failures, layout, lease, migrations, store, sweep
from .engine import Engine
from .errors import DatabaseReplaced, EmbedderUnavailable, HermesPatchError, HostError
from .guard import Guard, log
from .sweeper import Sweeper

DEBOUNCE = 0.3
LEASE_SECONDS = 30.0
LEASE_POLL = 2.0
BACKOFF = (2.0, 300.0)
FLUSH_SECONDS = 2.0
BROKEN_SECONDS = 60.0
"""Pause after an error that is not supposed to happen."""
PAUSE = 0.1
"""Least pause between two batches: SQLite's write lock is not fair to other writers."""


class Worker:
    """Embeds what is new in one database. All times in seconds."""

    def __init__(
        self,
        engine: Engine,
        applied_at: float | None = None,
        guards: Sequence[Guard] = (),
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        """``guards`` have failures to tell besides those of the engine's own guard.

        ``allowed`` is asked before every piece of work; False leaves all as it is.
        """
        self._allowed = allowed
        self._engine = engine
        self._applied_at = applied_at
        self._event = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None
        self._failures = 0
        self._seen: object = None
        self._renewed = 0.0
        self._reporter = failures.Reporter([engine.guard, *guards])
        self._sweeper = Sweeper(engine)
        self.owner = lease.new_owner()
        self.idle = threading.Event()

    def wake(self) -> None:
        """Say that something may have been written. Never blocks, never raises."""
        if not self._event.is_set() or self._thread is None:
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
                thread = threading.Thread(target=self._run, name="hermes-patch worker", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        wait: float | None = None
        while not self._stopping.is_set() or self._event.is_set():
            try:
                wait = self._turn(wait)
            except BaseException as error:  # this thread is the only one there will be
                self._engine.guard.note("realtime", error)
                self._stopping.wait(BROKEN_SECONDS)
                wait = 0.0

    def _turn(self, wait: float | None) -> float | None:
        """Wait for work and do it; returns how long to wait for the next."""
        if not self._event.wait(wait):
            self._seen = None  # time for another try of what failed
        if not self._stopping.is_set():
            self._stopping.wait(DEBOUNCE)
        self._event.clear()
        wait = self._attempt()
        self._report()
        if wait is not None and self._failures:
            # The breaker: what is written meanwhile waits with the rest.
            self._stopping.wait(wait)
            self._seen = None
            return 0.0
        if wait is None and not self._event.is_set():
            self.idle.set()
        return wait

    def _attempt(self) -> float | None:
        """Do what is pending; return when to look again by ourselves, None for "when woken"."""
        guard = self._engine.guard
        try:
            wait = self._drain()
        except DatabaseReplaced as error:
            guard.note("realtime", error)
            return None  # only a restart helps
        except HostError:
            return None  # nobody has the database open any more; the next start continues
        except Exception as error:
            if self._stopping.is_set():
                return None  # what was cut short is pending, and the next start continues
            guard.note("realtime", error)
            busy = isinstance(error, EmbedderUnavailable | sqlite3.OperationalError)
            return self._backoff(getattr(error, "retry_after", None) if busy else 60.0)
        self._failures = 0
        guard.succeeded("realtime")
        return wait

    def _report(self) -> None:
        """Leave our failures where ``hermes-patch status`` of another process finds them."""
        try:
            self._reporter.report(self._engine)
        except Exception as error:  # the database itself may be what failed
            log.debug("failures were not recorded: %s", type(error).__name__)

    def _backoff(self, at_least: float | None) -> float:
        first, most = BACKOFF
        pause = min(most, first * 2.0 ** min(self._failures, 10)) * random.uniform(0.8, 1.2)
        self._failures += 1
        self._seen = None
        return max(pause, at_least or 0.0)

    def _drain(self) -> float | None:
        engine = self._engine
        if not (engine.owned and engine.settings.enabled and engine.settings.realtime):
            return None
        if not self._allowed():
            return None
        with engine.reader() as conn:
            ready = store.exists(conn) and store.watermark(conn) is not None
            newest = (engine.identity(), _newest(conn))
        if not ready:
            engine.write(self._prepare)
        elif newest == self._seen and not engine.stale and not self._sweeper.is_due:
            return self._sweep()
        with engine.reader() as conn:
            mark = store.watermark(conn) or 0
            if not engine.stale and not self._anything(conn, mark):
                self._seen = newest
                return _soonest(_next_retry(conn), self._sweep())
        return self._with_lease(lambda: self._work_off(mark))

    def _sweep(self) -> float | None:
        """Look for edits and deletions when it is time; mend and embed what was found."""
        found, wait = self._sweeper.look() if not self._stopping.is_set() else (None, None)
        if not found:
            return wait

        def mend() -> None:
            for part in sweep.batches(found):
                self._engine.write(partial(sweep.mend, found=part))
            self._embed(edited=True)

        return self._with_lease(mend)

    def _with_lease(self, work: Callable[[], None]) -> float:
        engine = self._engine
        with engine.reader() as conn:
            holder = lease.holder(conn, time.time())
        if holder not in (None, self.owner) or not engine.write(self._lease):
            self._seen = None
            return LEASE_POLL
        try:
            work()
        finally:
            engine.write(lambda conn: lease.release(conn, self.owner))
        return 0.0 if self._stopping.is_set() else DEBOUNCE

    def _work_off(self, mark: int) -> None:
        self._mend_what_searches_met()
        self._embed(above=mark)
        self._embed(edited=True)

    def _mend_what_searches_met(self) -> None:
        edited = {self._engine.stale.pop() for _ in range(len(self._engine.stale))}
        if edited:
            self._engine.write(lambda conn: sweep.mend(conn, sweep.Finding(edited)))

    def _embed(self, above: int = 0, edited: bool = False) -> None:
        self._renewed = time.monotonic()
        pause = max(PAUSE, self._engine.settings.pause)
        while not self._out_of_time():
            batch = self._engine.indexer.index_batch(above=above, edited=edited, beat=self._beat)
            if batch.done:
                return
            if batch.texts_sent and not (batch.stored or batch.skipped or batch.failed):
                raise HermesPatchError("nothing could be stored: all messages are gone or changed")
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
        shape, roles = layout.read(conn), self._engine.settings.roles
        space_id = space.id if space else None
        return bool(
            store.pending(conn, shape, space_id, roles, above=mark, limit=1)
            or store.pending(conn, shape, space_id, roles, edited=True, limit=1)
        )

    def _lease(self, conn: sqlite3.Connection) -> bool:
        return lease.acquire(conn, self.owner, LEASE_SECONDS, time.time())

    def _prepare(self, conn: sqlite3.Connection) -> None:
        migrations.apply(conn)
        migrations.set_watermark(conn, before=self._applied_at)


def _newest(conn: sqlite3.Connection) -> int:
    row = conn.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").fetchone()
    return int(row[0]) if row else 0


def _next_retry(conn: sqlite3.Connection) -> float | None:
    row = conn.execute("SELECT min(next_try) FROM embedding_skips WHERE next_try > 0").fetchone()
    return None if row[0] is None else max(1.0, float(row[0]) - time.time())


def _soonest(*waits: float | None) -> float | None:
    return min((wait for wait in waits if wait is not None), default=None)


class Registry:
    """The workers of this process, by engine; forgotten in a forked child."""

    def __init__(self, make: Callable[[Engine], Worker] = Worker) -> None:
        self._make = make
        self._workers: dict[int, Worker] = {}
        self._lock = threading.Lock()

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
        """Stop all workers; bounded by *flush* seconds in all."""
        workers, self._workers = list(self._workers.values()), {}
        deadline = time.monotonic() + flush
        for worker in workers:
            worker.stop(max(0.0, deadline - time.monotonic()))
