"""Everything of ours over one state.db, with a real embeddings server behind it; no Hermes."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from hermes_patch.backfill import Backfill, HomeDatabase, Totals

from databases import HostDatabase
from hermes_patch import config, layout, legs, recall, rows, spaces, store, vectors
from hermes_patch.config import Settings
from hermes_patch.embedders.openai_api import OpenAIEmbedder
from hermes_patch.engine import Engine
from hermes_patch.layout import Filters
from hermes_patch.legs import VectorHit, VectorQuery
from hermes_patch.query import parse
from hermes_patch.recall import Call
from hermes_patch.worker import Worker
from test_worker import Handle

PATIENCE = 45.0
"""Seconds after which something that was waited for counts as never happening."""


class Counting(httpx.BaseTransport):
    """The network, with every attempt to reach it counted, those that fail included."""

    def __init__(self) -> None:
        self.attempts = 0
        self._network = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.attempts += 1
        return self._network.handle_request(request)

    def close(self) -> None:
        self._network.close()


class _Opened(Handle):
    """A handle that can be closed again, as the backfill does after every write."""

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def block(url: str, **more: Any) -> dict[str, Any]:
    """Return a memorySearch block for the server at *url*; ``key`` is its API key."""
    remote = {"baseUrl": url, "apiKey": more.pop("key", "")}
    usual = {"provider": "openai", "model": "some-model", "minSimilarity": 0.3, "pause": 0}
    return {**usual, "remote": remote, **more}


class Rig:
    """``home``/state.db with its engine, its worker and an embedder that asks *url*.

    Without *waits* the embedder really waits between two tries; otherwise it only notes there
    how long it would have. Further arguments are keys of the memorySearch block.
    """

    def __init__(self, home: Path, url: str, waits: list[float] | None = None, **more: Any) -> None:
        self.home = home
        self.path = home / "state.db"
        known = self.path.exists()
        self.settings: Settings = config.parse(block(url, **more))
        self.db = _reopened(self.path) if known else HostDatabase(self.path, "external")
        self.network = Counting()
        self.embedder = OpenAIEmbedder(
            self.settings,
            self.network if self.settings.is_loopback else None,
            None if waits is None else waits.append,
        )
        self.engine = Engine(self.path, lambda: self.settings, owned=True)
        self.engine._made["embedder"] = self.embedder
        self.handle = Handle(self.path)
        self.engine.attach(self.handle)
        self.worker = Worker(self.engine, applied_at=50.0)

    def say(self, session: str, content: Any, **more: Any) -> int:
        """Append a message as a host would, wake the worker, and return the message's id."""
        msg_id = self.db.say(session, content, **more)
        self.worker.wake()
        return msg_id

    def search(self, query: str, *host: int, limit: int = 50) -> list[dict[str, Any]]:
        """Return what a host gets whose own search finds the messages *host*."""
        with self.engine.reader() as conn:
            messages = {m.id: m for m in rows.load(conn, host, layout.read(conn))}
            own = [rows.host_row(conn, messages[i], "snippet of the host") for i in host]

        def search_messages(db: Any, query: str, limit: int = 20, offset: int = 0) -> Any:
            return own

        call = Call.bind(search_messages, self.handle, (query, limit), {})
        return self.engine.guard.run("search", lambda: recall.widen(self.engine, call, own), own)

    def found(self, query: str, *host: int) -> list[int]:
        """Return the ids of what such a search finds."""
        return [row["id"] for row in self.search(query, *host)]

    def near(self, query: str) -> list[VectorHit]:
        """Return what the vector leg alone finds."""
        answer = self.engine.query_vector(query, PATIENCE)
        if answer.vector is None or answer.space is None:
            return []
        floor = self.engine.floor
        wanted = VectorQuery(answer.space.id, answer.space.dims, answer.vector, floor)
        with self.engine.reader() as conn:
            shape = layout.read(conn)
            return legs.vector(conn, shape, parse(query), Filters(), wanted, floor)

    def backfill(self) -> Totals:
        """Embed everything that is pending, as the command does."""
        database = HomeDatabase(lambda: _Opened(self.path), self.path)
        run = Backfill(database, self.embedder, self.settings, sleep=lambda seconds: None)
        run.prepare()
        return run.run()

    def pending(self) -> list[int]:
        """Return the messages that still may get a vector."""
        with self.engine.reader() as conn:
            space = self.engine.indexer.space(conn)
            roles = self.settings.roles
            shape = layout.read(conn)
            left = store.pending(conn, shape, space and space.id, roles, limit=10_000)
        return [message.msg_id for message in left]

    def vectors(self) -> dict[int, list[list[float]]]:
        """Return the vectors of every message, in the order of its chunks."""
        with self.engine.reader() as conn:
            found: dict[int, list[list[float]]] = {}
            query = "SELECT msg_id, embedding FROM message_embeddings ORDER BY msg_id, chunk"
            for msg_id, blob in conn.execute(query):
                found.setdefault(msg_id, []).append(list(vectors.unpack(blob)))
        return found

    def reasons(self) -> dict[int, str]:
        """Return why messages have no vector."""
        with self.engine.reader() as conn:
            return dict(conn.execute("SELECT msg_id, reason FROM embedding_skips").fetchall())

    def spaces(self) -> list[spaces.Space]:
        with self.engine.reader() as conn:
            return spaces.find(conn)

    def close(self) -> None:
        self.embedder.close()
        self.worker.stop(1.0)
        self.db.conn.close()


def _reopened(path: Path) -> HostDatabase:
    made = HostDatabase.__new__(HostDatabase)
    made.path, made.shape, made.clock = path, "external", 5000.0
    made.conn = sqlite3.connect(path, isolation_level=None)
    return made


def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait until *condition* holds; fail after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what or "it never happened"
        threading.Event().wait(0.01)
