"""Searches while somebody types: off the caller's thread, and rarely sent anywhere.

A search box asks again with every few letters. Nothing here runs in the thread that asks: a
thread of ours finds the hits by meaning, and whoever waits for them stops waiting when a newer
query arrives or its patience ends. A server is asked for the vector of a query that was not
replaced for a while, for one at a time, and after a failure for none during some time.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import query, recall
from .call import Call, Rows
from .engine import Engine, QueryVector
from .guard import Guard

REST = 0.35
"""Seconds without a newer query after which a query is worth a request to a server."""
BURST = 0.25
"""A query that comes sooner after the one before, or after its answer, is one of many: it is not
waited for. Counted from the answer as well, since waiting would else make the next one late."""
QUIET = 30.0
"""Seconds in which a server is not asked for typed queries after it failed on one."""
LEAST = 3
"""Letters that a query has before it says anything; two where they are Chinese."""
MOST_THREADS = 8
"""Queries under way at once; beyond that only the host answers."""
_TURN_POLL = 0.05
_UNASKED = "not asked for while typing"

current: contextvars.ContextVar[Keystroke | None] = contextvars.ContextVar(
    "hermes_patch_keystroke", default=None
)


@dataclass(frozen=True)
class _Search:
    call: Call
    rows: Rows
    engine: Callable[[], Engine | None]


@dataclass
class Keystroke:
    """One request of a search box: first what the host found for it, then what we add."""

    search: _Search | None = None
    found: Rows | None = None
    replaced: threading.Event = field(default_factory=threading.Event)
    """Set once a newer query has arrived."""
    is_starting: bool = False
    """True while the local model is asked, which may have to start first."""
    release: Callable[[], None] = lambda: None
    """Ends the waiting for this query; may be called from any thread, and twice."""

    @property
    def text(self) -> str:
        """What was typed, as the host was asked."""
        return str(self.search.call.arguments.get("query")) if self.search is not None else ""

    def meet(self, call: Call, rows: Rows, engine: Callable[[], Engine | None]) -> Rows:
        """Take note of the host's *rows*; return what was found for them meanwhile, if it was."""
        if self.found is not None and self.search is not None and rows == self.search.rows:
            return self.found
        if self.search is None:
            self.search = _Search(call, rows, engine)
        return rows


@dataclass
class _Server:
    """How it goes with the embedder of one engine."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    quiet_until: float = 0.0


class Typing:
    """The queries typed into the search boxes of one process."""

    def __init__(self, guard: Guard, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._clock = clock
        self._newest: Keystroke | None = None
        self._last = -BURST
        self._threads = 0
        self._overdue: set[int] = set()
        self._servers: weakref.WeakKeyDictionary[Engine, _Server] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def begin(self, key: Keystroke) -> bool:
        """Look for hits by meaning in a thread, which calls ``key.release()`` when it is done.

        Returns False, and begins nothing, where too many are under way.
        """
        now = self._clock()
        with self._lock:
            last, self._newest = self._newest, key
            in_burst, self._last = now - self._last < BURST, now
            begun = self._threads < MOST_THREADS and not self._guard.is_open("dashboard")
            self._threads += begun
        if last is not None and last.text == key.text:
            key.replaced = last.replaced  # asked again, not replaced
        elif last is not None:
            last.replaced.set()
            last.release()
        if begun:
            name = "hermes-patch typing"
            threading.Thread(target=self._run, args=(key, in_burst), name=name, daemon=True).start()
        return begun and not self._overdue

    def answered(self) -> None:
        """An answer went out just now."""
        self._last = self._clock()

    def gave_up(self, key: Keystroke) -> None:
        """Nobody waits for *key* any more, nor for any other until its thread is done."""
        if key.found is None and not key.replaced.is_set():
            self._overdue.add(id(key))

    def _run(self, key: Keystroke, in_burst: bool) -> None:
        try:
            found = self._guard.run("dashboard", lambda: self._found(key, in_burst), None)
            key.found = found if found != (key.search and key.search.rows) else None
        except BaseException as error:  # SystemExit and the like, which end no thread but ours
            self._guard.note("dashboard", error)
        finally:
            key.release()
            with self._lock:
                self._threads -= 1
                self._overdue.discard(id(key))

    def _found(self, key: Keystroke, in_burst: bool) -> Rows | None:
        search = key.search
        engine = search.engine() if search is not None else None
        if search is None or engine is None:
            return None

        def ask(text: str) -> QueryVector:
            return self._ask(engine, text, key, in_burst)

        return recall.typed(engine, search.call, search.rows, ask)

    def _ask(self, engine: Engine, text: str, key: Keystroke, in_burst: bool) -> QueryVector:
        """Return the vector of what was typed, once it is known that nothing else follows."""
        known = engine.query_vector(text, 0.0, cached_only=True)
        if known.vector is not None or known.space is None or not says_something(text):
            return known
        in_child = engine.settings.provider == "local"
        server = self._server(engine)
        key.is_starting = in_child
        if not in_child:
            if in_burst or server.quiet_until > time.monotonic():
                key.release()
            if key.replaced.wait(REST):
                return QueryVector(None, known.space, _UNASKED)
        with _turn(server.turn, key) as mine:
            if not mine or (not in_child and server.quiet_until > time.monotonic()):
                return QueryVector(None, known.space, _UNASKED)
            answer = engine.query_vector(text, engine.settings.query_budget)
            server.quiet_until = 0.0 if answer.vector is not None else time.monotonic() + QUIET
        return answer

    def _server(self, engine: Engine) -> _Server:
        with self._lock:
            return self._servers.setdefault(engine, _Server())


def says_something(text: str) -> bool:
    """Tell whether *text* is long enough to mean something."""
    return len(text) >= (LEAST - 1 if any(map(query.is_cjk, text)) else LEAST)


@contextlib.contextmanager
def _turn(turn: threading.Lock, key: Keystroke) -> Iterator[bool]:
    """Wait until no other query is being embedded; yields False when a newer one has arrived."""
    mine = False
    while not key.replaced.is_set() and not mine:
        mine = turn.acquire(timeout=_TURN_POLL)
    try:
        yield mine
    finally:
        if mine:
            turn.release()
