"""The child's loop: one request, one reply, in order; and the watch that ends the process."""

from __future__ import annotations

import base64
import os
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

from . import models, wire
from .index import Index

Reply = tuple[wire.Header, bytes]
MOST_INDEXES = 2
"""So many spaces and databases are kept in codes at once."""


class _Watch:
    """Ends the process after *idle* seconds without a request, or when the parent is gone."""

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._parent = os.getppid()
        self._busy = False
        self._since = time.monotonic()
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    def __enter__(self) -> None:
        self._busy = True

    def __exit__(self, *_exc: object) -> None:
        self._since = time.monotonic()
        self._busy = False

    def _run(self) -> None:
        while True:
            time.sleep(min(2.0, self._idle / 4))
            idle = not self._busy and time.monotonic() - self._since > self._idle
            if idle or os.getppid() != self._parent:
                os._exit(0)


class Service:
    """Answers requests; the model is loaded by ``hello``."""

    def __init__(self, sockets: list[str] | None = None) -> None:
        self._model: models.Model | None = None
        self._sockets = sockets
        self._indexes: dict[tuple[Any, ...], Index] = {}
        self._verbs: dict[str, Callable[[wire.Header], Reply]] = {
            "hello": self._hello,
            "ping": self._ping,
            "embed": self._embed,
            "near": self._near,
        }

    def answer(self, header: wire.Header) -> Reply:
        """Return the reply to one request; an error becomes a reply, without any text."""
        try:
            verb = self._verbs[str(header.get("do"))]
            return verb(header)
        except ImportError as error:
            return {"ok": False, "why": "missing", "what": str(error.name or "")}, b""
        except Exception as error:  # the reply names the class only: messages may hold texts
            return {"ok": False, "why": "failed", "what": type(error).__name__}, b""

    def _hello(self, header: wire.Header) -> Reply:
        if header["model"]:  # without one the child is there for searching only
            self._model = models.load(str(header["model"]))
        return self._ping(header)

    def _ping(self, _header: wire.Header) -> Reply:
        reply: dict[str, Any] = {"ok": True, "pid": os.getpid()}
        if self._model is not None:
            reply |= {"model": self._model.name, "dims": self._model.dims}
        if self._sockets is not None:
            reply["sockets"] = len(self._sockets)
        return reply, b""

    def _embed(self, header: wire.Header) -> Reply:
        if self._model is None:
            return {"ok": False, "why": "failed", "what": "no model loaded"}, b""
        vectors, bad = self._model.embed(header["texts"], query=header["kind"] == "query")
        return {"ok": True, "dims": self._model.dims, "bad": bad}, vectors

    def _near(self, header: wire.Header) -> Reply:
        """Name the rows that may be among the nearest; the codes follow the table meanwhile.

        Without a query they only begin to.
        """
        names = ("path", "space", "dims", "limit", "numpy", "exact")
        key = tuple(header[name] for name in names)
        index = self._indexes.pop(key, None) or Index(*key)
        self._indexes[key] = index  # the last one is the one used last
        while len(self._indexes) > MOST_INDEXES:
            self._indexes.pop(next(iter(self._indexes)))
        if header.get("wrong"):
            index.forget()
        ready = index.follow()
        rows, size = index.size()
        reply: dict[str, Any] = {"ok": True, "rows": rows, "bytes": size, "ready": ready}
        if "query" not in header:
            return reply | {"covered": 0}, b""
        query = array("d", base64.b64decode(header["query"]))
        try:
            answer = index.search(query, int(header["k"]), float(header["floor"]))
        except LookupError:
            return reply | {"covered": 0, "refused": index.refused}, b""
        found = answer.found
        reply |= {"covered": answer.covered, "kind": answer.kind, "exact": answer.exact}
        reply |= {"count": len(found.ids), "rest": found.rest, "compared": answer.made is not None}
        body = (array("q", found.ids), array("d", found.uppers), array("d", answer.made or ()))
        return reply, b"".join(part.tobytes() for part in body)


def serve(reading: int, writing: int, idle: float, sockets: list[str] | None = None) -> None:
    """Answer frames from *reading* on *writing* until the other side is gone.

    ``idle`` is seconds. A list given as *sockets* is counted in the replies.
    """
    watch, service = _Watch(idle), Service(sockets)
    try:
        while True:
            header, _body = wire.read_frame(reading)
            with watch:
                wire.write_frame(writing, *service.answer(header))
    except (EOFError, OSError):
        pass
    # Native libraries may hang in their own cleanup; there is nothing left to save.
    os._exit(0)
