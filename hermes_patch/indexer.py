"""index_batch(): the one verb that turns pending messages into vectors.

Worker and backfill both drive it. Pending rows are read on a short-lived connection, their
texts are embedded with no transaction open, and the vectors are stored in short writes.
Nothing is remembered between two calls but the space, so a kill at any moment loses at most
the batch that was under way.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import layout, spaces, store, vectors, writes
from . import text as texts
from .config import Settings
from .embedders import sending
from .embedders.base import UNTRIED, Embedder, Item
from .errors import BadResponse, EmbedderError, EmbedderUnavailable
from .spaces import Database
from .stash import Stash

VERIFY_SECONDS = 600.0
"""After so long the server is asked again whether it still serves the same model."""
SCAN = 200
"""Pending rows read at once."""


@dataclass(frozen=True)
class BatchResult:
    """What one call did, in messages; ``texts_sent`` counts what went to the embedder.

    ``lowest`` is the smallest message id that was dealt with, None when nothing was pending.
    """

    stored: int = 0
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    texts_sent: int = 0
    lowest: int | None = None

    @property
    def done(self) -> bool:
        """True when nothing was pending."""
        return self.lowest is None


@dataclass(frozen=True)
class _Plan:
    """A batch: rows with nothing to embed, rows whose vectors are known, rows to send."""

    rows: list[store.PendingMessage]
    nothing: list[store.PendingMessage]
    known: dict[str, list[store.ChunkVector]]
    send: dict[str, list[texts.Chunk]]


class Indexer:
    """Indexes one database in the current space of one embedder."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder,
        settings: Settings,
        stash: Stash | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._settings = settings
        self._stash = stash or Stash()
        self._clock = clock
        self._ticks = time.monotonic
        self._verify_at = 0.0
        self.verified: spaces.Space | None = None

    def key(self) -> str:
        """Return the settings key of the space in use."""
        return spaces.settings_key(self._embedder.describe(), self._settings.max_tokens)

    def space(self, conn: sqlite3.Connection) -> spaces.Space | None:
        """Return the space in use without asking the embedder, None before the first vector."""
        key = self.key()
        if self.verified is not None:
            if self.verified.settings_key == key and spaces.has(conn, self.verified):
                return self.verified
            # The local model gave way to its fallback, or this is another database.
            self.verified = None
            self._stash.clear()
        found = spaces.find(conn, key)
        return found[0] if found else None

    def index_batch(
        self,
        *,
        above: int = 0,
        below: int | None = None,
        since: float | None = None,
        edited: bool = False,
        most: int = SCAN,
        beat: Callable[[], None] = lambda: None,
    ) -> BatchResult:
        """Embed the newest pending messages, at most one batch of texts.

        ``above`` and ``below`` bound message ids (exclusive), ``since`` their time, ``most``
        the number of messages; ``edited`` takes those marked as edited only. ``beat`` is
        called between requests; what it raises ends the call with nothing stored.

        Raises:
            EmbedderError: no vectors could be had; nothing was recorded, all stays pending.
            sqlite3.Error: the database could not be read or written.
        """
        bounds: dict[str, Any] = {"above": above, "below": below, "since": since, "edited": edited}
        bounds["limit"] = min(SCAN, most)
        plan, space = self._plan(bounds)
        if plan.send and (self.verified is None or self._ticks() > self._verify_at):
            verified = self.verified = spaces.verify(self._database, self._embedder, self.key())
            self._verify_at = self._ticks() + VERIFY_SECONDS
            if space is None or verified.id != space.id:
                plan, _ = self._plan(bounds)
            space = verified
        if not plan.rows:
            return BatchResult()
        try:
            made, failed = self._embed(plan.send, space, beat)
        except EmbedderError:
            self._verify_at = 0.0  # it may come back as another
            raise
        untried = {h for h, item in failed.items() if item.reason.startswith(UNTRIED)}
        reasons = {h: item for h, item in failed.items() if h not in untried}
        result = self._store(plan, space, made, reasons)
        if untried:
            raise EmbedderUnavailable(failed[untried.pop()].reason.removeprefix(UNTRIED))
        return result

    def _plan(self, bounds: dict[str, Any]) -> tuple[_Plan, spaces.Space | None]:
        with self._database.reader() as conn:
            space, roles = self.space(conn), self._settings.roles
            space_id, now = (space.id if space else None), self._clock()
            rows = store.pending(conn, layout.read(conn), space_id, roles, now=now, **bounds)
            worth = [row for row in rows if texts.is_embeddable(row.text)]
            known = self._known(conn, space, worth)
        return self._cut(rows, known), space

    def _known(
        self, conn: sqlite3.Connection, space: spaces.Space | None, rows: list[store.PendingMessage]
    ) -> dict[str, list[store.ChunkVector]]:
        if space is None:
            return {}
        hashes = [row.text_hash for row in rows]
        return {**self._stash.find(space.id, hashes), **store.known(conn, space.id, hashes)}

    def _cut(
        self, rows: list[store.PendingMessage], known: dict[str, list[store.ChunkVector]]
    ) -> _Plan:
        """Take rows, newest first, until the texts to send fill one batch.

        A message of more than one batch waits until nothing smaller is pending.
        """
        size, count = self._embedder.batch_size, 0
        huge: store.PendingMessage | None = None
        taken: list[store.PendingMessage] = []
        nothing: list[store.PendingMessage] = []
        send: dict[str, list[texts.Chunk]] = {}
        for row in rows:
            if not texts.is_embeddable(row.text):
                nothing.append(row)
            elif row.text_hash not in known and row.text_hash not in send:
                if len(row.text) > 4 * size * self._settings.max_tokens:
                    huge = huge or row
                    continue
                chunks = sending.chunks(row.text, self._settings)
                if send and count + len(chunks) > size:
                    break
                send[row.text_hash] = chunks
                count += len(chunks)
            taken.append(row)
        if huge is not None and not taken:
            taken = [huge]
            send[huge.text_hash] = sending.chunks(huge.text, self._settings)
        return _Plan(taken, nothing, known, send)

    def _embed(
        self,
        send: dict[str, list[texts.Chunk]],
        space: spaces.Space | None,
        beat: Callable[[], None],
    ) -> tuple[dict[str, list[store.ChunkVector]], dict[str, Item]]:
        """Return the vectors by text hash, and for the others the Item that says why not."""
        flat = [chunk.text for chunks in send.values() for chunk in chunks]
        if not flat or space is None:
            return {}, {}
        items = self._request(flat, beat)
        made: dict[str, list[store.ChunkVector]] = {}
        failed: dict[str, Item] = {}
        position = 0
        for text_hash, chunks in send.items():
            own = items[position : position + len(chunks)]
            position += len(chunks)
            bad = next((item for item in map(_checked(space.dims), own) if not item.vector), None)
            if bad is not None:
                failed[text_hash] = bad
                continue
            made[text_hash] = [
                store.ChunkVector(n, chunk.start, chunk.end, vectors.to_blob(item.vector or []))
                for n, (chunk, item) in enumerate(zip(chunks, own, strict=True))
            ]
        return made, failed

    def _request(self, flat: list[str], beat: Callable[[], None]) -> list[Item]:
        items: list[Item] = []
        size = self._embedder.batch_size
        for start in range(0, len(flat), size):
            part = flat[start : start + size]
            got = self._embedder.embed_documents(part)
            if len(got) != len(part):
                raise BadResponse(f"{len(part)} texts gave {len(got)} vectors")
            items += got
            beat()
        return items

    def _store(
        self,
        plan: _Plan,
        space: spaces.Space | None,
        made: dict[str, list[store.ChunkVector]],
        failed: dict[str, Item],
    ) -> BatchResult:
        ready = {**plan.known, **made}
        jobs = [(row, ready[row.text_hash]) for row in plan.rows if row.text_hash in ready]
        stored = writes.put_all(self._database, space, jobs, self._stash) if space else 0
        nothing = [
            store.Skip(r.msg_id, r.text_hash, "nothing to embed", True) for r in plan.nothing
        ]
        bad = [
            store.Skip(row.msg_id, row.text_hash, item.reason or "no vector", item.permanent)
            for row in plan.rows
            if (item := failed.get(row.text_hash)) is not None
        ]
        self._record(nothing, bad, space)
        return BatchResult(
            stored=stored,
            copied=sum(row.text_hash in plan.known for row, _ in jobs),
            skipped=len(nothing),
            failed=len(bad),
            texts_sent=sum(map(len, plan.send.values())),
            lowest=min(row.msg_id for row in plan.rows),
        )

    def _record(
        self, nothing: list[store.Skip], bad: list[store.Skip], space: spaces.Space | None
    ) -> None:
        if not nothing and not bad:
            return
        now = self._clock()

        def change(conn: sqlite3.Connection) -> None:
            store.skip(conn, store.NO_SPACE, nothing, now)
            if space is not None:
                store.skip(conn, space.id, bad, now)

        self._database.write(change)


def _checked(dims: int) -> Callable[[Item], Item]:
    def check(item: Item) -> Item:
        if item.vector is not None and len(item.vector) != dims:
            reason = f"vector has {len(item.vector)} dimensions, expected {dims}"
            return Item(None, reason)
        return item

    return check
