"""The parent's side of one child process: start it, ask it, notice its end, kill it.

Two daemon threads belong to a running child. The writer sends one request, waits for its
reply, and only then takes the next one, the most urgent first: a query waits for one frame
of documents at most, and a pipe never fills up. The reader receives and, when the pipe
closes, reaps the process, so that no zombie is left.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import wire

MAIN = Path(__file__).with_name("main.py")
URGENT, FIRST, LATER = 1, 0, 2
_KEPT = (
    "PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "WINDIR", "TEMP", "TMP", "TMPDIR",
    "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES",
)  # fmt: skip
_ONE_THREAD = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
_LOOK_EVERY = 0.25
_serials = itertools.count()


class ChildEnded(Exception):
    """The child is gone, so no reply will come. ``hung`` is True when we killed it for that.

    ``returncode`` is negative for a signal, as in subprocess.
    """

    def __init__(self, returncode: int, hung: bool) -> None:
        super().__init__(f"the child process ended with {returncode}")
        self.returncode = returncode
        self.hung = hung

    @property
    def crashed(self) -> bool:
        """False for an orderly end: its idle time was over."""
        return self.hung or self.returncode != 0

    @property
    def illegal_instruction(self) -> bool:
        """True when the CPU lacks an instruction the native code uses."""
        return self.returncode == -int(getattr(signal, "SIGILL", 4))


@dataclass(order=True)
class Request:
    """One request and, once ``done`` is set, its reply or the reason why there is none."""

    priority: int
    serial: int
    header: wire.Header = field(compare=False, repr=False)
    limit: float = field(compare=False)
    """Seconds the child may work on it before it counts as hung."""
    started: float | None = field(default=None, compare=False)
    reply: tuple[wire.Header, bytes] | None = field(default=None, compare=False, repr=False)
    ended: ChildEnded | None = field(default=None, compare=False)
    unwanted: bool = field(default=False, compare=False)
    done: threading.Event = field(default_factory=threading.Event, compare=False)


def environment() -> dict[str, str]:
    """Return the child's environment: what a Python needs to start, no key, one thread."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | dict.fromkeys(_ONE_THREAD, "1")


def command(
    python: str, vendor: Path | None, last: Sequence[str], idle: float, *extra: str
) -> list[str]:
    """Return the command line of a child.

    With *vendor* the child sees the standard library and that folder only; without it the
    packages of *python* itself and, after them, the folders *last*.
    """
    line = [python, "-I", *(["-S"] if vendor else []), str(MAIN), "--idle", str(idle)]
    if vendor:
        line += ["--path", str(vendor)]
    for folder in last:
        line += ["--last-path", folder]
    return [*line, *extra]


class Child:
    """One running child process; of no use any more once it has ended."""

    def __init__(self, line: Sequence[str], hello: wire.Header, start_limit: float) -> None:
        """Start the process and ask it *hello*; does not wait. Raises OSError."""
        self._process = _popen(line)
        self._requests: queue.PriorityQueue[Request] = queue.PriorityQueue()
        self._lock = threading.Lock()
        self._current: Request | None = None
        self._hung = False
        self._ended: ChildEnded | None = None
        self.crash_counted = False
        self.hello = self.submit(hello, FIRST, start_limit)
        self._reader = threading.Thread(target=self._read, daemon=True, name="child-reader")
        self._writer = threading.Thread(target=self._write, daemon=True, name="child-writer")
        try:
            self._writer.start()
            self._reader.start()
        except RuntimeError as error:  # the interpreter is shutting down
            self._process.kill()
            self._ended = ChildEnded(self._process.wait(), hung=False)
            raise OSError("no thread can be started any more") from error

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> ChildEnded | None:
        """How it ended, or None while it runs."""
        return self._ended

    def submit(self, header: wire.Header, priority: int, limit: float) -> Request:
        """Queue a request; smaller *priority* first. *limit* is seconds of work."""
        request = Request(priority, next(_serials), header, limit)
        with self._lock:
            if self._ended is None:
                self._requests.put(request)
            else:
                request.ended = self._ended
                request.done.set()
        return request

    def wait(self, request: Request, deadline: float | None) -> tuple[wire.Header, bytes]:
        """Return the reply to *request*.

        *deadline* is on the monotonic clock; None waits as long as the child makes progress.

        Raises:
            TimeoutError: the deadline is over; the child goes on.
            ChildEnded: the child died, or was killed because it hung.
        """
        while not request.done.is_set():
            left = _LOOK_EVERY if deadline is None else deadline - time.monotonic()
            if left <= 0:
                request.unwanted = True
                raise TimeoutError("no reply in time")
            request.done.wait(min(left, _LOOK_EVERY))
            self._kill_if_hung()
        if request.reply is None:
            raise request.ended or ChildEnded(1, hung=False)
        return request.reply

    def kill(self, wait: float = 2.0) -> None:
        """End the process at once and wait up to *wait* seconds for it to be reaped."""
        self._process.kill()
        self._reader.join(wait)

    def forget(self) -> None:
        """In a forked copy of the parent: let go of the pipes, leave the process alone."""
        self._process.returncode = 0  # it is not our child, nobody may wait for it
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _kill_if_hung(self) -> None:
        current = self._current
        if current is None or current.started is None or current.done.is_set():
            return
        if time.monotonic() - current.started > current.limit:
            self._hung = True
            self._process.kill()

    def _write(self) -> None:
        assert self._process.stdin is not None
        fd = self._process.stdin.fileno()
        while self._ended is None:
            request = self._requests.get()
            if request.unwanted or request.done.is_set():
                continue
            request.started = time.monotonic()
            self._current = request
            try:
                wire.write_frame(fd, request.header)
            except OSError:
                return  # the reader sees the end as well and tells everybody
            while not request.done.wait(1.0):
                if self._ended is not None:
                    return

    def _read(self) -> None:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        try:
            while True:
                reply = wire.read_frame(fd)
                request = self._current
                if request is None:
                    break  # a reply that nobody asked for: not our protocol
                self._current = None
                request.reply = reply
                request.done.set()
        except (EOFError, OSError, ValueError):
            pass
        self._end()

    def _end(self) -> None:
        self._process.kill()
        ended = ChildEnded(self._process.wait(), self._hung)
        with self._lock:
            self._ended = ended
        self._fail_waiting(ended)
        stop = Request(FIRST, next(_serials), {}, 0.0, unwanted=True)
        self._requests.put(stop)
        self._writer.join()
        self._fail_waiting(ended)  # what the writer held in its hands meanwhile
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _fail_waiting(self, ended: ChildEnded) -> None:
        waiting = [] if self._current is None else [self._current]
        while not self._requests.empty():
            waiting.append(self._requests.get_nowait())
        for request in waiting:
            request.ended = ended
            request.done.set()


def _popen(line: Sequence[str]) -> subprocess.Popen[bytes]:
    apart: dict[str, Any] = {}
    if sys.platform == "win32":
        apart["creationflags"] = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    else:
        apart["process_group"] = 0  # Ctrl-C in the terminal is not for the child
    return subprocess.Popen(
        list(line),
        bufsize=0,  # plain descriptors: no lock that a fork could leave taken
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=MAIN.anchor,
        env=environment(),
        **apart,
    )
