"""Embed the history once: the same verb as the worker, driven until nothing is pending.

Runs inside Hermes's Python. The database is opened and closed for every write, since
Hermes's own maintenance waits for everybody else to let go of it. A kill at any moment loses
at most one batch; running it again continues.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hermes_patch import failures, layout, lease, migrations, spaces, store, sweep, upstream
from hermes_patch import text as texts
from hermes_patch.config import Settings
from hermes_patch.connecting import connect_readonly
from hermes_patch.embedders.base import Embedder
from hermes_patch.engine import own_work
from hermes_patch.errors import EmbedderUnavailable, HermesPatchError, LeaseHeld
from hermes_patch.guard import Guard, explain
from hermes_patch.indexer import SCAN, BatchResult, Indexer

T = TypeVar("T")
Progress = Callable[[int], None]
"""Told after every batch how many messages are dealt with."""

LEASE_SECONDS = 30.0
LEASE_PATIENCE = 90.0
ATTEMPTS = 6
"""Tries in a row with an embedder or a database that is busy, before giving up."""
FIRST_ATTEMPTS = 3
"""The same as long as nothing has been embedded: it may never have worked."""


class HomeDatabase:
    """A state.db reached through a SessionDB that is open only while something is written."""

    def __init__(self, open_session_db: Callable[[], Any], path: Path) -> None:
        self._open = open_session_db
        self._path = path

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Open a short-lived read-only connection."""
        conn = connect_readonly(self._path)
        try:
            yield conn
        finally:
            conn.close()

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run *change* in one transaction of the host's write helper."""
        token = own_work.set(True)
        try:
            handle = self._open()
            try:
                return upstream.write(handle, change)
            finally:
                # Some releases truncate the WAL in close(), which makes all writers wait
                # for whoever reads just now.
                with contextlib.suppress(Exception):
                    handle._conn.execute("PRAGMA busy_timeout = 0")
                handle.close()
        finally:
            own_work.reset(token)


@dataclass(frozen=True)
class Plan:
    """What a backfill would do: pending messages, and the distinct texts to be sent."""

    messages: int
    texts: int
    where: str

    def sentence(self) -> str:
        """Return the announcement made before the first text goes anywhere."""
        if not self.messages:
            return "Nothing to do: every message asked for has its vector."
        messages, distinct = (
            texts.counted(self.messages, "message"),
            texts.counted(self.texts, "distinct text"),
        )
        return f"{messages} ({distinct}) will be embedded {self.where}."


@dataclass
class Totals:
    """The outcome, in messages; ``reasons`` counts failures by reason."""

    stored: int = 0
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    texts_sent: int = 0
    seconds: float = 0.0
    stopped: str = ""
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, batch: BatchResult) -> None:
        """Count one batch."""
        for name in ("stored", "copied", "skipped", "failed", "texts_sent"):
            setattr(self, name, getattr(self, name) + getattr(batch, name))

    def take(self, other: Totals) -> None:
        """Count another run."""
        for name in ("stored", "copied", "skipped", "failed", "texts_sent", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.stopped = self.stopped or other.stopped
        self.reasons = self.reasons or other.reasons

    @property
    def dealt_with(self) -> int:
        """Messages that are no longer pending."""
        return self.stored + self.skipped + self.failed


class Backfill:
    """One run over one database."""

    def __init__(
        self,
        database: HomeDatabase,
        embedder: Embedder,
        settings: Settings,
        *,
        since: float | None = None,
        limit: int | None = None,
        above: int = 0,
        edited: bool = False,
        seconds: float | None = None,
        patience: float = LEASE_PATIENCE,
        notify: Callable[[str], None] = lambda sentence: None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """``since`` is a time in seconds since 1970, ``limit`` a number of messages.

        ``above`` is a message id (exclusive), ``edited`` takes those marked as edited only.
        After ``seconds`` no further batch is begun; ``patience`` is how many seconds to wait
        for somebody else who indexes. ``notify`` is told why nothing seems to happen;
        ``stop`` ends a ``sleep``.
        """
        self._database = database
        self._embedder = embedder
        self._settings = settings
        self._since = since
        self._limit = limit
        self._above = above
        self._edited = edited
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._patience = patience
        self._first_attempts = FIRST_ATTEMPTS if seconds is None else 1
        self._notify = notify
        self._guard = Guard()
        self._reporter = failures.Reporter([self._guard])
        self._indexer = Indexer(database, embedder, settings)
        self._owner = lease.new_owner("backfill")
        self._stop = threading.Event()
        self._sleep = sleep or self._stop.wait

    def stop(self) -> None:
        """Finish the batch that is under way, then return."""
        self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """True once :meth:`stop` was called."""
        return self._stop.is_set()

    def prepare(self) -> None:
        """Make our tables where they are missing; drop vectors of changed and deleted texts."""
        with self._database.reader() as conn:
            missing = bool(migrations.pending(conn))
        if missing:
            self._database.write(migrations.apply)
        self._database.write(lambda conn: migrations.set_watermark(conn))
        with self._database.reader() as conn:
            found = sweep.everything(conn)
        for part in sweep.batches(found):
            self._database.write(partial(sweep.mend, found=part))

    def retry_failed(self) -> int:
        """Make messages pending again that failed, also for good; returns how many."""
        with self._database.reader() as conn:
            space = self._indexer.space(conn)
        if space is None:
            return 0
        space_id = space.id
        return self._database.write(lambda conn: store.retry_skips(conn, space_id))

    def plan(self) -> Plan:
        """Count what is pending without sending anything."""
        with self._database.reader() as conn:
            space = self._indexer.space(conn) if store.exists(conn) else None
            messages, hashes = 0, set[str]()
            for row in self._pending(conn, space):
                messages += 1
                hashes.add(row.text_hash)
                if self._limit is not None and messages >= self._limit:
                    break
            known = store.known(conn, space.id, hashes) if space else {}
        where = "on this machine" if self._embedder.is_local else f"by {self._settings.host}"
        return Plan(messages, len(hashes - known.keys()), where)

    def _pending(
        self, conn: sqlite3.Connection, space: spaces.Space | None
    ) -> Iterator[store.PendingMessage]:
        shape, space_id = layout.read(conn), space.id if space else None
        rows = store.walk_pending(conn, shape, space_id, self._settings.roles, since=self._since)
        return (row for row in rows if texts.is_embeddable(row.text))

    def has_work(self) -> bool:
        """Tell whether anything is pending, texts with nothing to embed included."""
        with self._database.reader() as conn:
            space, roles = self._indexer.space(conn), self._settings.roles
            bounds: dict[str, Any] = {"above": self._above, "edited": self._edited}
            space_id, shape = (space.id if space else None), layout.read(conn)
            return bool(store.pending(conn, shape, space_id, roles, limit=1, **bounds))

    def run(self, progress: Progress = lambda done: None) -> Totals:
        """Work until nothing is pending.

        Raises:
            EmbedderError: no vectors could be had, after several tries where that may help.
            LeaseHeld: another process indexes, and did so for longer than our patience.
        """
        started = time.monotonic()
        totals = Totals()
        self._take_lease()
        try:
            while self._pass(totals, progress):
                pass
        except (HermesPatchError, sqlite3.Error) as error:
            self._guard.note("backfill", error)
            raise
        else:
            self._guard.succeeded("backfill")
        finally:
            self._database.write(lambda conn: lease.release(conn, self._owner))
            with contextlib.suppress(sqlite3.Error):
                self._reporter.report(self._database)
            totals.seconds = time.monotonic() - started
        with self._database.reader() as conn:
            space = self._indexer.space(conn)
            totals.reasons = store.skip_reasons(conn, space.id) if space else {}
        return totals

    def _pass(self, totals: Totals, progress: Progress) -> bool:
        """Go once from the newest message down; True when another pass may find more."""
        below: int | None = None
        before = totals.dealt_with
        while not self._finished(totals):
            tries = ATTEMPTS if totals.dealt_with else self._first_attempts
            batch = self._patiently(tries, below, self._left(totals))
            if batch.done:
                return totals.dealt_with > before and below is not None
            totals.add(batch)
            below = batch.lowest
            progress(totals.dealt_with)
            self._renew_lease()
            self._sleep(self._settings.pause)
        return False

    def _finished(self, totals: Totals) -> bool:
        if self._stop.is_set():
            totals.stopped = "interrupted"
        elif self._limit is not None and totals.dealt_with >= self._limit:
            totals.stopped = "limit"
        elif self._is_over():
            totals.stopped = "out of time"
        return bool(totals.stopped)

    def _is_over(self, wait: float = 0.0) -> bool:
        return self._deadline is not None and time.monotonic() + wait >= self._deadline

    def _left(self, totals: Totals) -> int:
        return SCAN if self._limit is None else self._limit - totals.dealt_with

    def _batch(self, below: int | None, most: int) -> BatchResult:
        return self._indexer.index_batch(
            above=self._above,
            below=below,
            since=self._since,
            edited=self._edited,
            most=most,
            beat=self._renew_lease,
        )

    def _patiently(self, tries: int, below: int | None, most: int) -> BatchResult:
        """Try again, with growing pauses, what a busy server or database refused."""
        for attempt in range(1, tries):
            try:
                return self._batch(below, most)
            except (EmbedderUnavailable, sqlite3.OperationalError) as error:
                if self._stop.is_set():
                    raise
                asked = getattr(error, "retry_after", None) or 0.0
                wait = max(min(60.0, 2.0**attempt), asked)
                if self._is_over(wait):
                    raise
                self._notify(f"{explain(error)}; trying again in {wait:.0f} s")
                self._sleep(wait)
                self._renew_lease()
        return self._batch(below, most)

    def _take_lease(self) -> None:
        deadline = time.monotonic() + self._patience
        while not self._database.write(self._lease):
            with self._database.reader() as conn:
                holder = lease.holder(conn, time.time()) or ""
            if holder.startswith("backfill-"):
                raise LeaseHeld(f"state.db: another backfill is running ({holder})")
            if self.is_stopping:
                raise HermesPatchError(f"stopped while {holder} indexes; nothing was embedded")
            if time.monotonic() > deadline:
                raise LeaseHeld(
                    f"state.db: {holder} has been indexing this database for "
                    f"{self._patience:.0f} s; let it finish or stop it, then run backfill again"
                )
            self._notify(f"waiting for {holder}, which indexes this database just now")
            self._sleep(1.0)
        self._leased = time.monotonic()

    def _renew_lease(self) -> None:
        if time.monotonic() - self._leased > LEASE_SECONDS / 3:
            if not self._database.write(self._lease):
                raise HermesPatchError("state.db: another process took over; run it again")
            self._leased = time.monotonic()

    def _lease(self, conn: sqlite3.Connection) -> bool:
        return lease.acquire(conn, self._owner, LEASE_SECONDS, time.time())
