"""Everything one database needs in one process: settings, embedder, caches, handles.

Made lazily and cheaply, since the first write of the host makes it: settings are read and
the embedder is started in our own threads only.
"""

from __future__ import annotations

import contextvars
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from . import embedders, forks, layout, nearest, spaces, store, upstream, vectors
from .coarse import Coarse
from .config import Settings
from .connecting import connect_readonly, identity
from .embedders import profiles
from .embedders.base import PROBE_TEXT, Embedder
from .embedders.cache import QueryCache
from .errors import BadResponse, BusyHere, DatabaseReplaced, HostError, QueryRefused
from .guard import Guard, explain, run_within
from .indexer import VERIFY_SECONDS, Indexer
from .stash import Stash

T = TypeVar("T")

own_work: contextvars.ContextVar[bool] = contextvars.ContextVar("hermes_patch_work", default=False)
"""True while we call the host ourselves, so that our hooks leave our own calls alone."""

COVERAGE_SECONDS = 30.0


class Engine:
    """One database in one process, shared by the search, the worker and the methods."""

    def __init__(
        self,
        db_path: Path,
        load_settings: Callable[[], Settings],
        *,
        owned: bool,
        vendor: Path | None = None,
    ) -> None:
        """``owned`` is False for another profile's database, which is never written."""
        self.db_path = db_path
        self.owned = owned
        self.vendor = vendor
        self.guard = Guard()
        self.stash = Stash()
        self.cache = QueryCache()
        self._context = contextvars.copy_context()
        self._load_settings = load_settings
        self._lock = threading.RLock()
        self._handles: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
        self._coverage: tuple[float, store.Coverage] | None = None
        self.stale: set[int] = set()
        """Messages whose text is no longer the one that was embedded, for the worker."""
        self._same: dict[int, float] = {}
        self._made: dict[str, Any] = {}

    @property
    def settings(self) -> Settings:
        """The settings of the profile this engine was made in; raises ConfigError."""
        return self._once("settings", lambda: self._context.copy().run(self._load_settings))

    @property
    def embedder(self) -> Embedder:
        """The embedder of the settings; made once, started at its first use."""
        return self._once("embedder", lambda: embedders.create(self.settings, self.vendor))

    @property
    def indexer(self) -> Indexer:
        """The indexer over this database."""
        return self._once(
            "indexer", lambda: Indexer(self, self.embedder, self.settings, self.stash)
        )

    @property
    def library(self) -> str | None:
        """The path of the sqlite-vec library, None when there is none or it is not wanted."""
        if self.settings.accelerate == "false":
            return None
        return self._once("library", lambda: nearest.find_library(self.vendor))

    @property
    def coarse(self) -> Coarse | None:
        """What names candidates in large stores, None where it is not wanted."""
        settings = self.settings
        if not settings.search_memory:
            return None
        return self._once(
            "coarse",
            lambda: Coarse(
                self.db_path,
                self.vendor,
                megabytes=settings.search_memory,
                use_numpy=settings.accelerate != "false",
                exact=settings.exact,
                note=lambda error: self.guard.note("codes", error),
            ),
        )

    def _once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._made:
            with forks.work(), self._lock:
                if name not in self._made:
                    self._made[name] = make()
        return self._made[name]  # type: ignore[no-any-return]

    @property
    def floor(self) -> float:
        """The least similarity worth showing, of the model that is really in use."""
        model = self.embedder.describe().model
        if self.settings.floor_is_set or model == self.settings.model:
            return self.settings.min_similarity
        return profiles.find(model).floor

    @property
    def opening(self) -> float | None:
        """What the best hit must reach, None where the user set a floor of their own."""
        if self.settings.floor_is_set:
            return None
        return profiles.find(self.embedder.describe().model).opening

    @property
    def language_gap(self) -> float:
        """How much farther the same meaning is from one language to another."""
        return profiles.find(self.embedder.describe().model).language_gap

    def attach(self, handle: Any, opened: object = None) -> None:
        """Remember a live SessionDB, through which we may write, and the file it has open."""
        if handle not in self._handles:
            self._handles[handle] = opened or self.identity()

    def identity(self) -> object:
        """Return what tells the file at our path from any other, None where there is none."""
        return identity(self.db_path)

    def check_same_file(self, handle: Any) -> None:
        """Raise DatabaseReplaced when our path no longer leads to what *handle* has open."""
        if self._handles.get(handle) != self.identity():
            raise self._replaced()

    def _replaced(self) -> DatabaseReplaced:
        return DatabaseReplaced(
            f"{self.db_path} is not the file that Hermes has open: it was moved or replaced; "
            "restart Hermes"
        )

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Open a short-lived read-only connection of our own, accelerated where possible."""
        library = self.library
        with forks.work():
            conn = connect_readonly(self.db_path)
            try:
                nearest.accelerate(conn, library)
                yield conn
            finally:
                conn.close()

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run *change* through the write helper of a live SessionDB.

        Raises:
            HostError: the database is not ours to write, or no SessionDB is open.
            DatabaseReplaced: those that are open have another file than our path leads to.
        """
        if not self.owned:
            raise HostError(f"{self.db_path.name} belongs to another profile and is never written")
        handle = self._writable_handle()
        token = own_work.set(True)
        try:
            with forks.work():
                return upstream.write(handle, change)
        except AttributeError:
            if is_writable(handle):
                raise
            raise HostError("the SessionDB was closed meanwhile") from None
        finally:
            own_work.reset(token)

    def _writable_handle(self) -> Any:
        here, others = self.identity(), False
        for handle, opened in list(self._handles.items()):
            if is_writable(handle):
                if opened == here:
                    return handle
                others = True
        raise self._replaced() if others else HostError("no SessionDB is open for writing")

    def query_vector(self, text: str, seconds: float, *, cached_only: bool = False) -> QueryVector:
        """Return the vector of a query within *seconds*, or the reason why there is none."""
        with self.reader() as conn:
            if not store.exists(conn):
                return QueryVector(None, None, "nothing is indexed yet")
            space = self.indexer.space(conn)
        if space is None:
            return QueryVector(None, None, "nothing is indexed yet")
        key = (space.id, text)
        vector = self.cache.get(key)
        if vector is not None:
            return QueryVector(vector, space, "")
        if cached_only:
            return QueryVector(None, space, "not asked for while typing")
        if self.guard.is_open("query"):
            return QueryVector(None, space, "the embedder failed a moment ago")
        self._begin_codes(space)
        try:
            vector = run_within(
                seconds, lambda: self._embed_query(space, text, 0.95 * seconds), "query"
            )
        except Exception as error:
            if not isinstance(error, BusyHere | QueryRefused):  # the embedder itself is fine
                self.guard.note("query", error)
            return QueryVector(None, space, explain(error))
        self.guard.succeeded("query")
        return QueryVector(vector, space, "")

    def _begin_codes(self, space: spaces.Space) -> None:
        """Have the codes made while the query is embedded."""
        if self.coarse is not None and not self.coarse.state.get("ready"):
            with self.reader() as conn:
                self.coarse.begin(conn, space.id, space.dims)

    def _check_engine(self, space: spaces.Space) -> None:
        """Once a process, before the first query: does the server still serve this model?"""
        local = self.embedder.describe().provider == "local"
        soon = self._same.get(space.id, 0.0) > time.monotonic()
        if local or soon or space.probe is None or space == self.indexer.verified:
            return
        item = self.embedder.embed_documents([PROBE_TEXT])[0]
        if item.vector is None or not spaces.matches(space, item.vector):
            raise BadResponse(
                "the server gives other vectors than those stored; `hermes-patch backfill` makes "
                "new ones"
            )
        self._same[space.id] = time.monotonic() + VERIFY_SECONDS

    def _embed_query(self, space: spaces.Space, text: str, seconds: float) -> Sequence[float]:
        vector = vectors.normalise(self.embedder.embed_query(text, seconds))
        self._check_engine(space)  # after the query, whose one try tells soon if nobody answers
        # The cache is filled here, in our thread: an answer that comes too late for this
        # search serves the next one.
        self.cache.put((space.id, text), vector)
        return vector

    def coverage(self, conn: sqlite3.Connection) -> store.Coverage:
        """Return the coverage, counted at most every COVERAGE_SECONDS."""
        now = time.monotonic()
        if self._coverage is None or now - self._coverage[0] > COVERAGE_SECONDS:
            space = self.indexer.space(conn)
            counted = store.coverage(
                conn, layout.read(conn), space.id if space else None, self.settings.roles
            )
            self._coverage = (now, counted)
        return self._coverage[1]

    def close(self) -> None:
        """Let the embedder and the codes go, if they were made."""
        for name in ("embedder", "coarse"):
            made = self._made.get(name)
            if made is not None:
                made.close()


class QueryVector:
    """The vector of a query and its space, or the reason why there is none."""

    __slots__ = ("reason", "space", "vector")

    def __init__(
        self, vector: Sequence[float] | None, space: spaces.Space | None, reason: str
    ) -> None:
        self.vector = vector
        self.space = space
        self.reason = reason


def is_writable(handle: Any) -> bool:
    """Tell whether a SessionDB is open for writing; a closed one must not be re-opened."""
    return getattr(handle, "_conn", None) is not None and not getattr(handle, "read_only", False)
