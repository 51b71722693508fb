"""Who may index a database now: one owner at a time, for a while, so that nobody pays twice.

A lease of a process that died on this machine counts as free; on another machine it is over
when its time is.
"""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import uuid

LONGEST_SECONDS = 120.0
"""A lease that lasts longer than this was written by a clock that went wrong: it is free."""
_OWNER = re.compile(r"(?:[a-z]+-)?(?P<pid>\d+)-[0-9a-f]+@(?P<machine>.*)")


def new_owner(role: str = "") -> str:
    """Return a name for this process: ``[role-]pid-random@machine``."""
    name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}@{platform.node()}"
    return f"{role}-{name}" if role else name


def is_dead(owner: str) -> bool:
    """Tell whether *owner* was a process of this machine that no longer runs."""
    found = _OWNER.fullmatch(owner)
    if found is None or os.name != "posix" or found["machine"] != platform.node():
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def acquire(conn: sqlite3.Connection, owner: str, seconds: float, now: float) -> bool:
    """Take or renew the lease; False while another, living owner has it."""
    held = holder(conn, now)
    if held is not None and held != owner:
        return False
    conn.execute(
        "INSERT OR REPLACE INTO embedding_lease (id, owner, expires_at) VALUES (1, ?, ?)",
        (owner, now + seconds),
    )
    return True


def holder(conn: sqlite3.Connection, now: float) -> str | None:
    """Return who may index now, None when the lease is free."""
    row = conn.execute(
        "SELECT owner FROM embedding_lease WHERE expires_at > ?1 AND expires_at < ?1 + ?2",
        (now, LONGEST_SECONDS),
    ).fetchone()
    return None if row is None or is_dead(str(row[0])) else str(row[0])


def release(conn: sqlite3.Connection, owner: str) -> None:
    """Let go of the lease if *owner* has it."""
    conn.execute("DELETE FROM embedding_lease WHERE owner = ?", (owner,))
