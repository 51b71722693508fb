"""When a worker looks for edits and deletions: soon near the end, seldom everywhere."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import asdict, dataclass

from . import store, sweep
from .engine import Engine

RECENT = 500
"""Newest message ids looked at whenever something was written that is no new message."""
RECENT_SECONDS = 5.0
"""Least time between two such looks."""
FULL_SECONDS = 6 * 3600.0
"""Time between two passes over everything, counted over all processes."""
STEP_PAUSE = 0.5
"""Pause between two steps of such a pass."""
_KEY = "sweep"


@dataclass
class _Position:
    """Where the pass over everything is; kept in the database, so that it outlives us."""

    began: float = 0.0
    table: int = len(sweep.TABLES)
    after: int = 0

    @property
    def done(self) -> bool:
        return self.table >= len(sweep.TABLES)

    def is_due(self, now: float) -> bool:
        return not self.done or not 0 <= now - self.began < FULL_SECONDS

    def step(self, conn: sqlite3.Connection, found: sweep.Finding) -> None:
        """Look at one part, small tables in one go."""
        while not self.done:
            part = sweep.step(conn, sweep.TABLES[self.table], self.after)
            found.add(part)
            if part.last is not None:
                self.after = part.last
                return
            self.table, self.after = self.table + 1, 0


class Sweeper:
    """The sweeps of one database in one process. All times in seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked: float | None = None

    @property
    def is_due(self) -> bool:
        """True when the last look is long enough ago."""
        return self._wait() <= 0

    def _wait(self) -> float:
        if self._looked is None:
            return 0.0
        return self._looked + RECENT_SECONDS - time.monotonic()

    def look(self) -> tuple[sweep.Finding, float | None]:
        """Return what was found to mend, and when to look again by ourselves."""
        if not self.is_due:
            return sweep.Finding(), max(0.0, self._wait())
        position, now = None, time.time()
        with self._engine.reader() as conn:
            found = sweep.recent(conn, RECENT)
            kept = _read(conn)
            if kept.is_due(now):
                position = _Position(now, 0) if kept.done else kept
                position.step(conn, found)
        self._looked = time.monotonic()
        if position is None:
            return found, None
        text = json.dumps(asdict(position))
        self._engine.write(lambda conn: store.set_state(conn, _KEY, text))
        if position.done:
            return found, None
        self._looked = None
        return found, STEP_PAUSE


def _read(conn: sqlite3.Connection) -> _Position:
    try:
        kept = json.loads(store.state(conn, _KEY) or "{}")
        return _Position(float(kept["began"]), int(kept["table"]), int(kept["after"]))
    except (TypeError, ValueError, KeyError, OverflowError):
        return _Position()
