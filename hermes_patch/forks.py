"""Keeps a fork of the host out of the middle of what our threads do.

A process that forks while another of its threads imports a module, or is inside SQLite,
gives the child that module half made and those locks taken, for good.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

WAIT_SECONDS = 2.0
"""Most that a fork waits for our threads; mostly there is nothing to wait for."""


class Gate:
    """Counts the threads at work; a fork waits until there is none, others wait for the fork."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forking = False
        self._mine = threading.local()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Hold off forks; may be nested, and never waits for longer than WAIT_SECONDS."""
        depth = getattr(self._mine, "depth", 0)
        with self._changed:
            if not depth:
                self._changed.wait_for(lambda: not self._forking, WAIT_SECONDS)
                self._inside += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            if not depth:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()

    def close(self) -> None:
        """Wait for the other threads, for a while, and keep them out until :meth:`open`."""
        own = 1 if getattr(self._mine, "depth", 0) else 0
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: self._inside <= own, WAIT_SECONDS)

    def open(self) -> None:
        """Let the threads go on."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()


_gate = Gate()


def work() -> contextlib.AbstractContextManager[None]:
    """Hold off forks while modules may be loaded, or a database is read or written."""
    return _gate.work()


def _in_child() -> None:
    global _gate
    _gate = Gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _gate.close(),
        after_in_parent=lambda: _gate.open(),
        after_in_child=_in_child,
    )
