"""Fail open: whatever goes wrong in our code, the host's result stands.

A Guard swallows ``Exception`` (never KeyboardInterrupt or SystemExit), logs one line per
cause, counts, and stops trying for a while after failures in a row.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from .errors import BudgetExceeded, HermesPatchError

T = TypeVar("T")

log = logging.getLogger("hermes_patch")

_SQLITE = {
    sqlite3.SQLITE_BUSY: "the database is locked by another process",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write",
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "the file is no database",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
}
OPEN_AFTER = 3
"""Failures in a row after which a seam is left alone."""
OPEN_SECONDS = (30.0, 600.0)
"""How long it is left alone: the first time, and at most."""


@dataclass(frozen=True)
class Failure:
    """The last failure of one kind; ``kind`` is "seam: cause".

    ``at`` and ``over``, when the seam worked again, are seconds since 1970.
    """

    kind: str
    message: str
    count: int
    at: float
    over: float | None = None


def explain(error: BaseException) -> str:
    """Return what may be shown of an error: our own messages whole, others by their kind only.

    Foreign messages can quote a query, a text or a key.
    """
    if isinstance(error, HermesPatchError) and str(error):
        return str(error)
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None) or 0
        return _SQLITE.get(code & 0xFF, type(error).__name__)
    return type(error).__name__


class Guard:
    """Runs our code at one seam and remembers how that went."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` dates failures; ``ticks``, which never go back, time the breaker."""
        self._clock = clock
        self._ticks = ticks
        self._lock = threading.Lock()
        self._failures: dict[str, Failure] = {}
        self._in_a_row: dict[str, int] = {}
        self._fine: set[str] = set()
        self._closed_until: dict[str, float] = {}

    def run(self, seam: str, work: Callable[[], T], default: T) -> T:
        """Return ``work()``, or *default* when it raises or the seam's breaker is open."""
        if self.is_open(seam):
            return default
        try:
            result = work()
        except Exception as error:
            self.note(seam, error)
            return default
        if seam not in self._fine:
            self.succeeded(seam)
        return result

    def is_open(self, seam: str) -> bool:
        """Tell whether a seam is left alone just now."""
        until = self._closed_until.get(seam)
        return until is not None and self._ticks() < until

    def succeeded(self, seam: str) -> None:
        """Forget the failures in a row of a seam: what failed is over."""
        if seam in self._fine:
            return
        with self._lock:
            self._fine.add(seam)
            self._in_a_row.pop(seam, None)
            self._closed_until.pop(seam, None)
            for kind, failure in self._failures.items():
                if failure.over is None and kind.startswith(f"{seam}: "):
                    self._failures[kind] = replace(failure, over=self._clock())

    def note(self, seam: str, error: BaseException) -> None:
        """Count a failure; log the first of its kind; open the breaker after a few.

        Never raises, though a handler of the host's may, or its stack may be full.
        """
        with contextlib.suppress(Exception):
            self._note(seam, error)

    def _note(self, seam: str, error: BaseException) -> None:
        message = explain(error)
        kind = f"{seam}: {type(error).__name__}"
        with self._lock:
            self._fine.discard(seam)
            last = self._failures.get(kind)
            new = Failure(kind, message, 1, self._clock())
            self._failures[kind] = new if last is None else replace(new, count=last.count + 1)
            row = self._in_a_row[seam] = self._in_a_row.get(seam, 0) + 1
            if row >= OPEN_AFTER:
                first, most = OPEN_SECONDS
                self._closed_until[seam] = self._ticks() + min(
                    most, first * 2.0 ** min(row - OPEN_AFTER, 10)
                )
        if last is None:
            log.warning("%s failed, Hermes is not affected: %s", seam, message)

    def fine(self) -> set[str]:
        """Return the seams that worked the last time."""
        with self._lock:
            return set(self._fine)

    def failures(self) -> list[Failure]:
        """Return the last failure of each kind, the newest first."""
        with self._lock:
            return sorted(self._failures.values(), key=lambda failure: -failure.at)


def run_within(seconds: float, work: Callable[[], T], name: str) -> T:
    """Return ``work()`` run in a daemon thread, with the caller's context.

    Raises:
        BudgetExceeded: it was not done in time; it goes on, and its result is dropped.
        HermesPatchError: it raised SystemExit or the like, which must end no thread but ours.
    """
    outcome: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def call() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(call,), name=f"hermes-patch {name}", daemon=True
    ).start()
    if not done.wait(seconds):
        raise BudgetExceeded(f"{name} took longer than {seconds:g} s")
    if errors and not isinstance(errors[0], Exception):
        raise HermesPatchError(f"{name} ended with {type(errors[0]).__name__}")
    if errors:
        raise errors[0]
    return outcome[0]
