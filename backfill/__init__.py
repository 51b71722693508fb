"""Embed the history once: the same verb as the worker, driven until nothing is pending.

Runs inside Hermes's Python. The database is opened and closed for every write, since
Hermes's own maintenance waits for everybody else to let go of it. A kill at any moment loses
at most one batch; running it again continues.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hermes_patch import layout, migrations, spaces, store
from hermes_patch import text as texts
from hermes_patch.config import Settings
from hermes_patch.embedders.base import Embedder
from hermes_patch.engine import connect_readonly, own_work
from hermes_patch.errors import EmbedderUnavailable, HermesPatchError
from hermes_patch.indexer import SCAN, BatchResult, Indexer

T = TypeVar("T")

LEASE_SECONDS = 30.0
LEASE_PATIENCE = 90.0
ATTEMPTS = 6
"""Tries in a row with an embedder or a database that is busy, before giving up."""


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
                return handle._execute_write(change)  # type: ignore[no-any-return]
            finally:
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
            return "Nothing to do: every message has its vector."
        return (
            f"{self.messages} messages ({self.texts} distinct texts) will be embedded {self.where}."
        )


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

    @property
    def dealt_with(self) -> int:
        """Messages that are no longer pending."""
        return self.stored + self.skipped + self.failed


class Progress(Protocol):
    """Told after every batch how many messages are dealt with."""

    def __call__(self, done: int) -> None: ...


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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``since`` is a time in seconds since 1970, ``limit`` a number of messages."""
        self._database = database
        self._embedder = embedder
        self._settings = settings
        self._since = since
        self._limit = limit
        self._sleep = sleep
        self._indexer = Indexer(database, embedder, settings)
        self._owner = f"backfill-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._stop = False

    def stop(self) -> None:
        """Finish the batch that is under way, then return."""
        self._stop = True

    def prepare(self) -> None:
        """Make our tables where they are missing."""
        with self._database.reader() as conn:
            missing = bool(migrations.pending(conn))
        if missing:
            self._database.write(migrations.apply)
        self._database.write(lambda conn: migrations.set_watermark(conn))

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
        shape, below = layout.read(conn), None
        while True:
            rows = store.pending(
                conn,
                shape,
                space.id if space else None,
                self._settings.roles,
                below=below,
                since=self._since,
                limit=500,
            )
            yield from (row for row in rows if texts.is_embeddable(row.text))
            if not rows:
                return
            below = rows[-1].msg_id

    def run(self, progress: Progress = lambda done: None) -> Totals:
        """Work until nothing is pending.

        Raises:
            EmbedderError: no vectors could be had, after several tries where that may help.
            HermesPatchError: another process holds the lease for too long.
        """
        started = time.monotonic()
        totals = Totals()
        self._take_lease()
        try:
            while self._pass(totals, progress):
                pass
        finally:
            self._database.write(lambda conn: store.release_lease(conn, self._owner))
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
            batch = self._patiently(self._batch, below, self._left(totals))
            if batch.done:
                return totals.dealt_with > before and below is not None
            totals.add(batch)
            below = batch.lowest
            progress(totals.dealt_with)
            self._renew_lease()
            self._sleep(self._settings.pause)
        return False

    def _finished(self, totals: Totals) -> bool:
        if self._stop:
            totals.stopped = "interrupted"
        elif self._limit is not None and totals.dealt_with >= self._limit:
            totals.stopped = "limit"
        return bool(totals.stopped)

    def _left(self, totals: Totals) -> int:
        return SCAN if self._limit is None else self._limit - totals.dealt_with

    def _batch(self, below: int | None, most: int) -> BatchResult:
        return self._indexer.index_batch(
            below=below, since=self._since, most=most, beat=self._renew_lease
        )

    def _patiently(self, work: Callable[..., T], *args: Any) -> T:
        """Try again, with growing pauses, what a busy server or database refused."""
        for attempt in range(1, ATTEMPTS):
            try:
                return work(*args)
            except (EmbedderUnavailable, sqlite3.OperationalError) as error:
                if self._stop:
                    raise
                wait = getattr(error, "retry_after", None) or 0.0
                self._sleep(max(min(60.0, 2.0**attempt), wait))
                self._renew_lease()
        return work(*args)

    def _take_lease(self) -> None:
        deadline = time.monotonic() + LEASE_PATIENCE
        while not self._database.write(self._lease):
            if time.monotonic() > deadline or self._stop:
                raise HermesPatchError(
                    "state.db: another process has been indexing this database for "
                    f"{LEASE_PATIENCE:.0f} s; let it finish or stop it, then run backfill again"
                )
            self._sleep(1.0)
        self._leased = time.monotonic()

    def _renew_lease(self) -> None:
        if time.monotonic() - self._leased > LEASE_SECONDS / 3:
            self._database.write(self._lease)
            self._leased = time.monotonic()

    def _lease(self, conn: sqlite3.Connection) -> bool:
        return store.acquire_lease(conn, self._owner, LEASE_SECONDS, time.time())
