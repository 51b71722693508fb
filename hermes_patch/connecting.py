"""Short-lived read-only connections to a state.db, and what tells one file from another."""

from __future__ import annotations

import os
import sqlite3
from operator import methodcaller
from pathlib import Path
from urllib.parse import quote

READ_TIMEOUT = 1.0
_LENIENT = methodcaller("decode", "utf-8", "replace")


def connect_readonly(
    path: Path, timeout: float = READ_TIMEOUT, *, leave_no_trace: bool = False
) -> sqlite3.Connection:
    """Open *path* read-only; the caller closes it. Times in seconds.

    ``leave_no_trace`` makes no -shm file where nobody else has the database open; it is for
    a short look from outside of Hermes.
    """
    uri = f"file:{quote(str(path))}?mode=ro"
    if leave_no_trace and not any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal")):
        uri += "&immutable=1"
    conn = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
    conn.text_factory = _LENIENT  # one row that is not UTF-8 must not cost all others
    conn.execute("PRAGMA query_only = ON")
    return conn


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells the file at *path* from any other, None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
