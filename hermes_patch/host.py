"""The only module that knows Hermes: which seams exist and what stands in their place.

Every replacement calls the host's own function exactly once, outside any ``try`` of ours,
and hands its result back unchanged when ours has nothing to add or fails.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from . import config, forks, keystrokes, methods, recall, redaction, seams, stash, store, upstream
from .call import Call
from .connecting import connect_readonly, identity
from .dashboard import Dashboard
from .engine import Engine, own_work
from .guard import Guard, run_within
from .patching import Patch, PatchSet, Refusal
from .worker import Registry, Worker

T = TypeVar("T")
Weak = weakref.WeakKeyDictionary

REPLACING = ("replace_messages", "clear_messages")
CARRY_CHUNKS = 4000
CARRY_SECONDS = 0.25
"""Most that a replacement of a transcript waits for us."""
PREPARE_SECONDS = 1.0
"""Most that the first call of a process waits until our side of its database is made."""


class Host:
    """Our presence in one process of Hermes."""

    def __init__(self, vendor: Path | None = None) -> None:
        """``vendor`` is the folder of bundled wheels, by default the one beside this package."""
        self.patches = PatchSet()
        self.guard = Guard()
        self.dashboard = Dashboard(self.guard)
        self.refusals: list[Refusal] = []
        self.buried: list[str] = []
        self.takeover = False
        self._started = time.time()
        self._folder = Path(__file__).resolve().parent.parent
        self._vendor = vendor or _existing(self._folder / "vendor")
        self._engines: dict[tuple[str, str], Engine] = {}
        self._by_handle: Weak[Any, dict[Path, Engine]] = Weak()
        self._wakes: Weak[Any, Callable[[], None]] = Weak()
        self._lock = threading.RLock()
        self._record = self._folder / "applied.json"
        self._had_record = self._record.exists()
        self._opened: Weak[Any, object] = Weak()
        self.workers = Registry(
            lambda engine: Worker(
                engine, self._applied_at(), guards=[self.guard], allowed=self._is_applied
            )
        )
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._let_go)

    def install(self) -> list[Refusal]:
        """Patch SessionDB and the tool; idempotent. Raises HostError, ConfigError."""
        if self.patches.active or not config.load_inside_hermes().enabled:
            return self.refusals
        patches = self._session_db_patches(seams.session_db())
        tool = seams.tool()
        patches += self._tool_patches(tool) if tool is not None else [seams.no_tool()]
        redaction.use(upstream.redact)
        self.refusals, self.buried = self.patches.apply(patches), []
        seams.tell(self.guard, self.refusals, self.patches.capabilities())
        return self.refusals

    def uninstall(self) -> list[str]:
        """Take all patches back and stop the workers; returns what lies under foreign patches."""
        self.buried += self.dashboard.revert() + self.patches.revert()
        self.patches = type(self.patches)()  # what lies buried stays inert with the old one
        self._let_go()
        return self.buried

    def _let_go(self) -> None:
        """Stop the workers, which may still embed, and only then close their embedders."""
        with self._lock:  # whoever makes a worker just now is done, and nobody else begins
            self.workers.stop()
        for engine in list(self._engines.values()):
            self.guard.run("close", engine.close, None)
        self._engines.clear()
        self._by_handle.clear()
        self._wakes.clear()

    def engine_of(self, handle: Any) -> Engine:
        """Return the engine of a SessionDB's database in the current profile."""
        home = upstream.home()
        engines = self._by_handle.setdefault(handle, {})
        if home not in engines:
            engine = self._engine(handle, home)
            engine.attach(handle, self._opened.get(handle))
            engines[home] = engine
        return engines[home]

    def _engine(self, handle: Any, home: Path) -> Engine:
        path = Path(handle.db_path)
        key = (str(home), str(path))
        with self._lock:
            if key not in self._engines:
                owned = os.path.realpath(path.parent) == os.path.realpath(home)
                self._engines[key] = Engine(
                    path, config.load_inside_hermes, owned=owned, vendor=self._vendor
                )
            return self._engines[key]

    def _applied_at(self) -> float:
        """When this home was patched, in seconds since 1970: older messages are history."""
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            return float(record["applied_at"])
        except (OSError, ValueError, KeyError, TypeError):
            return self._started

    def _is_applied(self) -> bool:
        """False once a revert has taken the plugin away under a Hermes that still runs."""
        return not self._had_record or self._record.exists()

    def _forget(self) -> None:
        """In a forked child: the parent's threads, pipes and connections are not ours."""
        self._lock = threading.RLock()
        self.guard = Guard()
        self.dashboard.after_fork(self.guard)
        self.patches.after_fork()
        self._engines.clear()
        self._by_handle.clear()
        self._wakes.clear()
        self.workers.forget()

    # -- what stands in the host's place -------------------------------------------------

    def _session_db_patches(self, session_db: type) -> list[Patch]:
        self.takeover = hasattr(session_db, "store_embedding")
        # Every door into the tables leads through the write helper, append_message included.
        helper = "_execute_write"
        door = helper if hasattr(session_db, helper) else "append_message"
        patches = [
            seams.search(session_db, self._search_messages),
            Patch(session_db, door, self._waking, "realtime"),
            Patch(session_db, "__init__", self._opening, "open"),
        ]
        for name, method in methods.make(self.engine_of).items():
            patches.append(Patch(session_db, name, _instead(method), "methods", adds=True))
        for name in REPLACING:
            if hasattr(session_db, name):
                patches.append(Patch(session_db, name, self._carrying, f"carry {name}"))
        if hasattr(session_db, "_vector_recall"):
            patches.append(Patch(session_db, "_vector_recall", _instead(_nothing), "takeover"))
        return patches

    def _tool_patches(self, tool: Any) -> list[Patch]:
        patches = [Patch(tool, "session_search", self._session_search, "tool")]
        if hasattr(tool, "_vector_recall"):
            self.takeover = True
            patches.append(Patch(tool, "_vector_recall", _instead(_nothing), "takeover"))
        return [*patches, *seams.description(tool)]

    def _search_messages(self, original: Callable[..., Any]) -> Callable[..., Any]:
        patches = self.patches

        @functools.wraps(original)
        def search_messages(handle: Any, *args: Any, **kwargs: Any) -> Any:
            rows = original(handle, *args, **kwargs)
            if not patches.active or own_work.get() or not isinstance(rows, list):
                return rows
            call = functools.partial(Call.bind, original, handle, args, kwargs)
            key = keystrokes.current.get()
            if key is not None:
                prepared = functools.partial(self._prepared, handle)
                return self.guard.run("search", lambda: key.meet(call(), rows, prepared), rows)
            if (engine := self._prepared(handle)) is None:
                return rows
            found = engine.guard.run("search", lambda: recall.widen(engine, call(), rows), rows)
            if engine.stale:
                self.guard.run("wake", self._wakes.get(handle) or _nothing, None)
            return found

        return search_messages

    def _session_search(self, original: Callable[..., Any]) -> Callable[..., Any]:
        patches = self.patches

        @functools.wraps(original)
        def session_search(*args: Any, **kwargs: Any) -> Any:
            if not patches.active:
                return original(*args, **kwargs)
            trace = recall.Trace()
            token = recall.tool_call.set(trace)
            try:
                answer = original(*args, **kwargs)
            finally:
                recall.tool_call.reset(token)
            if trace.semantic is None:
                return answer
            ours = self.guard.run("tool", lambda: recall.annotate(answer, trace), answer)
            return ours if isinstance(ours, str) else answer

        return session_search

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        patches = self.patches

        @functools.wraps(original)
        def opening(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(handle, *args, **kwargs)
            if patches.active:
                self.guard.run("open", lambda: self._note_file(handle), None)
            return result

        return opening

    def _note_file(self, handle: Any) -> None:  # its path may lead elsewhere later
        self._opened[handle] = identity(Path(handle.db_path))
        self.dashboard.find()

    def _waking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        patches = self.patches

        @functools.wraps(original)
        def writing(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(handle, *args, **kwargs)
            if patches.active and not own_work.get():
                wake = self._wakes.get(handle) or self._bounded(
                    "wake", PREPARE_SECONDS, lambda: self._wake_of(handle)
                )
                if wake is not None:
                    self.guard.run("wake", wake, None)
            return result

        return writing

    def _prepared(self, handle: Any) -> Engine | None:
        if not self.guard.run("prepare", self._is_applied, False):
            return None
        engine = self.guard.run("prepare", lambda: self._known(handle), None) or self._bounded(
            "prepare", PREPARE_SECONDS, lambda: self.engine_of(handle)
        )
        return engine if isinstance(engine, Engine) else None

    def _known(self, handle: Any) -> Engine | None:
        return self._by_handle.get(handle, {}).get(upstream.home())

    def _bounded(self, seam: str, seconds: float, work: Callable[[], T]) -> T | None:
        """Return ``work()``, None when it fails or takes longer than *seconds*."""
        return self.guard.run(seam, lambda: run_within(seconds, work, seam), None)

    def _wake_of(self, handle: Any) -> Callable[[], None]:
        with self._lock:
            engine = self.engine_of(handle) if self.patches.active else None
            if engine is None or not engine.owned:
                return _nothing  # seen from another profile; its own may use this handle later
            return self._wakes.setdefault(handle, self.workers.of(engine).wake)

    def _carrying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        patches = self.patches

        @functools.wraps(original)
        def replacing(handle: Any, *args: Any, **kwargs: Any) -> Any:
            if patches.active:
                session_id = kwargs.get("session_id", args[0] if args else None)
                self._bounded("carry", CARRY_SECONDS, lambda: self._carry(handle, session_id))
            return original(handle, *args, **kwargs)

        return replacing

    def _carry(self, handle: Any, session_id: Any) -> None:
        """Keep a session's vectors in memory before the host deletes its rows."""
        engine = self.engine_of(handle)
        with forks.work(), closing(connect_readonly(engine.db_path, timeout=0.05)) as conn:
            if store.exists(conn):
                engine.stash.keep(stash.session_vectors(conn, str(session_id), CARRY_CHUNKS))


def _existing(folder: Path) -> Path | None:
    return folder if folder.is_dir() else None


def _nothing(*_args: Any, **_kwargs: Any) -> Any:
    return []


def _instead(function: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    return lambda _original: function
