"""The failures that ``hermes-patch status`` shows, kept in the database across processes."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from . import store
from .guard import Failure, Guard
from .spaces import Database

KEEP_SECONDS = 7 * 86400.0
"""How long a failure that is over is still told."""
_KEY = "failures"
_REMEDIES = {
    "ConfigError": "correct config.yaml where the message says so",
    "EmbedderUnavailable": "see that the embedding server runs; what is missing is embedded later",
    "Busy": "nothing: what is missing is embedded when the server has time again",
    "TimedOut": "see what keeps the server busy, or raise timeout; the rest follows later",
    "Failed": "see the embedding server's own log; what is missing is embedded later",
    "BusyHere": "nothing: too many searches at once; those went by keywords alone",
    "BatchTooLarge": "lower maxTokens; the server takes shorter texts only",
    "Rejected": "the server refuses these texts; see its own log, or lower maxTokens",
    "QueryRefused": "check that the model in config.yaml is an embedding model of this server",
    "Miscounted": "the server does not answer like an embeddings server; check the address",
    "EmbedderRefused": "correct key, model or quota, then ask again with `hermes-patch doctor`",
    "BadResponse": "check that address and model in config.yaml are those of an embeddings server",
    "BudgetExceeded": "the embedder is slow; a larger queryBudget waits longer",
    "OperationalError": "the database was busy, full or read-only; run `hermes-patch doctor`",
    "DatabaseError": "run `hermes-patch doctor`; it checks the database",
    "LegFailed": "run `hermes-patch doctor`; it checks the tables that are searched",
    "SchemaError": "run `hermes-patch doctor`; it names the table",
    "SeamMissing": "the rest works; update hermes-patch, run `hermes-patch apply`, restart Hermes",
    "HostError": "restart Hermes; run `hermes-patch apply` after an update of Hermes",
}
_ELSE = "run `hermes-patch doctor`; if it finds nothing, this is a bug worth reporting"


def remedy(failure: Failure) -> str:
    """Return what a person can do about a failure."""
    return _REMEDIES.get(failure.kind.rpartition(": ")[2], _ELSE)


def read(conn: sqlite3.Connection) -> list[Failure]:
    """Return what was recorded, the newest first; what cannot be read counts as nothing."""
    try:
        items = [_parsed(item) for item in json.loads(store.state(conn, _KEY) or "[]")]
    except (TypeError, ValueError, OverflowError, OSError):
        return []
    return sorted(items, key=lambda failure: -failure.at)


def _parsed(item: dict[str, Any]) -> Failure:
    failure = Failure(**item)
    time.localtime(failure.at)
    if failure.over is not None:
        time.localtime(failure.over)
    if not isinstance(failure.kind, str) or not isinstance(failure.count, int):
        raise TypeError("not a failure")
    return failure


def merged(
    old: Iterable[Failure], new: Iterable[Failure], fine: Collection[str], now: float
) -> list[Failure]:
    """Add *new* failures, their counts being those since the last time, to *old* ones.

    Failures of the seams in *fine*, which work again, are over; long over, they are dropped.
    """
    result = {failure.kind: failure for failure in old}
    for failure in new:
        before = result.get(failure.kind)
        count = failure.count + (before.count if before else 0)
        result[failure.kind] = replace(failure, count=count)
    for kind, failure in result.items():
        if failure.over is None and kind.partition(": ")[0] in fine:
            result[kind] = replace(failure, over=now)
    return [f for f in result.values() if f.over is None or now - f.over < KEEP_SECONDS]


def record(
    conn: sqlite3.Connection, new: Iterable[Failure], fine: Collection[str], now: float
) -> None:
    """Write :func:`merged` back; safe to run again only in a transaction that was rolled back."""
    everything = merged(read(conn), new, fine, now)
    store.set_state(conn, _KEY, json.dumps([asdict(failure) for failure in everything]))


class Reporter:
    """Carries the failures of this process's guards into the database, each once."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = guards
        self._told: dict[str, int] = {}

    def report(self, database: Database) -> None:
        """Write what is new since the last report, and what is over; raises sqlite3.Error."""
        failed = [failure for guard in self._guards for failure in guard.failures()]
        new = [
            replace(failure, count=failure.count - self._told.get(failure.kind, 0))
            for failure in failed
            if failure.count > self._told.get(failure.kind, 0)
        ]
        fine = set[str]().union(*(guard.fine() for guard in self._guards))
        with database.reader() as conn:
            known = read(conn) if store.exists(conn) else []
        if new or any(f.over is None and f.kind.partition(": ")[0] in fine for f in known):
            database.write(lambda conn: record(conn, new, fine, time.time()))
            self._told = {failure.kind: failure.count for failure in failed}
