"""Vectors go into the database in short transactions, so that no writer of the host waits long."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from . import store
from .spaces import Database, Space
from .stash import Stash

WRITE_BYTES = 256 * 1024
"""Vectors in one write transaction."""

Job = tuple[store.PendingMessage, list[store.ChunkVector]]


def put_all(database: Database, space: Space, jobs: Sequence[Job], stash: Stash) -> int:
    """Store the vectors of messages and return of how many; raises sqlite3.Error.

    Messages that are gone or changed meanwhile are left out; their vectors go into the
    stash, since a transcript that is written anew brings the same texts back. So does what
    could not be written: the next try need not send it again.
    """
    stored = 0
    groups = list(_groups(jobs))
    for number, group in enumerate(groups):
        try:
            done = database.write(_put(space, group))
        except Exception:
            _keep(stash, space, [job for rest in groups[number:] for job in rest])
            raise
        if done < len(group):
            _keep(stash, space, group)
        stored += done
    return stored


def _keep(stash: Stash, space: Space, jobs: Sequence[Job]) -> None:
    stash.keep({(space.id, row.text_hash): chunks for row, chunks in jobs})


def _put(space: Space, group: Sequence[Job]) -> Callable[[sqlite3.Connection], int]:
    def change(conn: sqlite3.Connection) -> int:
        return sum(store.put(conn, space, row, chunks) for row, chunks in group)

    return change


def _groups(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    group: list[Job] = []
    size = 0
    for job in jobs:
        cost = sum(len(chunk.blob) for chunk in job[1])
        if group and size + cost > WRITE_BYTES:
            yield group
            group, size = [], 0
        group.append(job)
        size += cost
    if group:
        yield group
