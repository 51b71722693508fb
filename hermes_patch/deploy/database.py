"""The migration of state.db for apply and revert: waits for a lock, changes all or nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from ..errors import DeployError

LOCK_SECONDS = 10.0
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_T = TypeVar("_T")


class Migrate(Protocol):
    """``migrations.apply``: returns the names of what was newly applied."""

    def __call__(self, conn: sqlite3.Connection, *, owns_schema_version: bool) -> list[str]: ...


@dataclass(frozen=True)
class Schema:
    """The functions on our tables; all but ``apply`` may be missing."""

    apply: Migrate
    pending: Callable[[sqlite3.Connection], list[str]] | None = None
    set_watermark: Callable[[sqlite3.Connection], Any] | None = None


def schema(migrate: Migrate | None = None) -> Schema:
    """Return our migrations, or a Schema of *migrate* alone."""
    if migrate is not None:
        return Schema(migrate)
    from .. import migrations

    return Schema(migrations.apply, migrations.pending, migrations.set_watermark)


def is_ready(path: Path) -> bool:
    """True when *path* is a database in which Hermes has made its messages."""
    return _has_table(path, "messages")


def is_migrated(path: Path) -> bool:
    """True when *path* is a database with our tables."""
    return _has_table(path, "message_embeddings")


def count_messages(path: Path) -> int:
    """Return how many messages *path* holds, of whatever role."""
    return int(
        _read(path, lambda conn: conn.execute("SELECT count(*) FROM messages").fetchone()[0])
    )


def _has_table(path: Path, name: str) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return bool(_read(path, lambda conn: conn.execute(query, (name,)).fetchone()))


def pending(path: Path, functions: Schema) -> list[str] | None:
    """Return what apply would migrate, without changing a byte; None when nobody can say."""
    look = functions.pending
    return _read(path, look) if look is not None else None


def migrate(path: Path, functions: Schema, *, owns: bool, watermark: bool) -> list[str]:
    """Migrate *path* and return the names newly applied; DeployError when it stays locked."""

    mark = functions.set_watermark if watermark else None

    def change(conn: sqlite3.Connection) -> list[str]:
        if mark is None:
            return functions.apply(conn, owns_schema_version=owns)
        conn.execute("BEGIN IMMEDIATE")
        with conn:
            names = functions.apply(conn, owns_schema_version=owns)
            mark(conn)
        return names

    return _write(path, change)


def forget_watermark(path: Path) -> None:
    """Make what is written from now on history, until the next apply."""
    from .. import migrations

    _write(path, migrations.forget_watermark)


def purge(path: Path, host_schema_version: int | None) -> list[str]:
    """Drop our tables from *path* and return their names."""
    from .. import migrations

    return _write(path, lambda conn: migrations.purge(conn, host_schema_version))


def change(path: Path, work: Callable[[sqlite3.Connection], _T]) -> _T:
    """Run *work* in one transaction; raises DeployError when *path* stays locked."""

    def whole(conn: sqlite3.Connection) -> _T:
        conn.execute("BEGIN IMMEDIATE")
        with conn:
            return work(conn)

    return _write(path, whole)


def _read(path: Path, look: Callable[[sqlite3.Connection], _T]) -> _T:
    # Without these files nobody writes; immutable then keeps SQLite from making a -shm file.
    busy = any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal"))
    return _write(path, look, mode="ro" if busy else "ro&immutable=1")


def _write(path: Path, change: Callable[[sqlite3.Connection], _T], mode: str = "rw") -> _T:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        left = max(deadline - time.monotonic(), 0.0)
        try:
            return _once(path, change, mode, left)
        except sqlite3.Error as error:
            busy = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _BUSY
            if not busy:
                raise DeployError(f"{path}: {error}; nothing was changed") from None
            if left <= 0:
                raise DeployError(
                    f"{path}: locked by another process for {LOCK_SECONDS:g} s; nothing was "
                    "changed. Stop Hermes, or wait until it is idle, and run this again"
                ) from None
        time.sleep(0.05)


def _once(path: Path, change: Callable[[sqlite3.Connection], _T], mode: str, wait: float) -> _T:
    uri = f"file:{quote(str(path))}?mode={mode}"
    with closing(sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None)) as conn:
        return change(conn)
