"""One daemon thread per provider: mirrored writes, background embedding, the idle timer."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from . import hosting, mirror, reconcile
from .core import Memory
from .mirror import Entries, Write

RETRY_SECONDS = (5.0, 300.0)
_STOP = object()
_RECONCILE = object()


class Worker:
    """Does for one memory what must not keep a turn waiting; every failure is noted."""

    def __init__(self, open_memory: Callable[[], Memory], entries: Entries) -> None:
        """``open_memory`` is called in the thread, at the first thing to do."""
        self._open = open_memory
        self._entries = entries
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._unsettled = False
        self._failures = 0
        self.idle = threading.Event()
        self.idle.set()

    def put(self, write: Write) -> None:
        """Have a write carried over; returns at once."""
        self._give(write)

    def reconcile_soon(self) -> None:
        """Have the notes reconciled; returns at once."""
        self._give(_RECONCILE)

    def do(self, work: Callable[[], object]) -> None:
        """Have *work* done; returns at once."""
        self._give(work)

    def _give(self, job: object) -> None:
        with self._lock:
            self.idle.clear()
            self._queue.put(job)
            if self._thread is None or not self._thread.is_alive():
                context = contextvars.copy_context()
                self._thread = threading.Thread(
                    target=context.run, args=(self._run,), name="hermes-patch memory", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            wait = self._patience()
            try:
                job = self._queue.get(timeout=wait)
            except queue.Empty:
                job = None
            if job is _STOP:
                self.idle.set()
                return
            self._guarded(job)
            with self._lock:
                if self._queue.empty():
                    self.idle.set()

    def _patience(self) -> float | None:
        if self._failures:
            first, most = RETRY_SECONDS
            return min(most, first * 2.0 ** min(self._failures - 1, 10))
        try:
            return self._open().options.idle_minutes * 60 if self._unsettled else None
        except Exception:  # noted when there is something to do
            return None

    def _guarded(self, job: object) -> None:
        try:
            memory = self._open()
        except Exception:
            self._failures += 1
            return
        try:
            self._do(memory, job)
            self._failures = 0
            memory.engine.guard.succeeded("memory")
        except Exception as error:
            self._failures += 1
            memory.engine.guard.note("memory", error)

    def _do(self, memory: Memory, job: object) -> None:
        if isinstance(job, Write):
            mirror.enqueue(memory, [job])
            self._unsettled = True
        elif callable(job):
            job()
            return
        mirror.drain(memory, self._entries)
        memory.refresh(lambda: not self._stopping.is_set())
        if job is _RECONCILE or (job is None and self._unsettled and not self._failures):
            judge = hosting.judge if memory.options.judge else None
            reconcile.run(memory, self._entries(), judge)
            self._unsettled = False

    def stop(self, seconds: float) -> None:
        """Finish what is waiting within *seconds*, then let the thread go."""
        end = time.monotonic() + seconds
        if self._thread is not None and self._thread.is_alive():
            self.idle.wait(max(0.0, end - time.monotonic()))
            self._stopping.set()
            self._queue.put(_STOP)
