"""Candidates for the nearest vectors, from the codes that a child process keeps of a store.

The child starts at the first search that wants it. Nobody waits for it: as long as it has no
codes, searches do without, and so they do when it fails.
"""

from __future__ import annotations

import base64
import math
import sqlite3
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import nearest
from .child import client, engine
from .errors import BadResponse
from .nearest import Candidates

ASK_SECONDS = 1.0
"""Most that a search waits for candidates before it does without."""
_HUNG_SECONDS = 60.0
_IDLE_SECONDS = 600.0


class Coarse:
    """Names candidates of one database; implements ``nearest.Source``.

    ``megabytes`` bounds the memory of the codes. ``exact`` excludes codes that only estimate
    where those that prove do not fit. ``note`` is told why candidates could not be had.
    """

    def __init__(
        self,
        path: Path,
        vendor: Path | None,
        *,
        megabytes: int,
        use_numpy: bool,
        exact: bool,
        note: Callable[[Exception], None],
        python: str | None = None,
    ) -> None:
        key = engine.Key(engine.SEARCHING, vendor, python or sys.executable or "", _IDLE_SECONDS)
        self._engine = engine.find_or_make(key)
        self._note = note
        self._wrong = False
        self.uses_numpy = use_numpy
        self.quick = use_numpy and engine.folder_of("numpy", vendor) is not None
        self._header: dict[str, Any] = {
            "do": "near",
            "path": str(path.absolute()),
            "limit": megabytes << 20,
            "numpy": use_numpy,
            "exact": exact,
        }
        self._begun: client.Request | None = None
        self.coming = False
        self.state: dict[str, Any] = {}
        """What the child said last of its codes: kind, exact, rows, bytes, ready."""

    @property
    def pid(self) -> int | None:
        """The id of the child process, None when there is none."""
        child = self._engine.child
        return child.pid if child is not None else None

    def begin(self, conn: sqlite3.Connection, space_id: int, dims: int) -> None:
        """Have codes of a large space made, if they are worth waiting for; does not wait."""
        if self.state.get("ready") or not self.quick:
            return
        (rows,) = conn.execute("SELECT max(id) FROM message_embeddings").fetchone()
        if (rows or 0) * dims <= nearest.SCANNED[nearest.tier(conn)]:
            return
        try:
            self._begin(self._engine.running(), {"space": space_id, "dims": dims})
        except Exception as error:  # the search will meet it again
            self._note(error)

    def _begin(self, child: client.Child, asked: dict[str, Any]) -> None:
        if self._begun is None or self._begun.done.is_set():
            self._begun = child.submit(self._header | asked, client.LATER, _HUNG_SECONDS)

    def ask(
        self, space_id: int, unit: Sequence[float], k: int, floor: float, deadline: float | None
    ) -> Candidates | None:
        """Return candidates for the *k* nearest rows, None when there are none to be had."""
        self.coming = False
        self.state = self.state or {"ready": False}
        soon = time.monotonic() + ASK_SECONDS
        end = soon if deadline is None else min(soon, deadline)
        asked: dict[str, Any] = {"space": space_id, "dims": len(unit)}
        try:
            child = self._engine.running()
            if not child.hello.done.is_set():
                self._begin(child, asked)
                self.coming = self.quick
                return None
            query = base64.b64encode(array("d", unit).tobytes()).decode("ascii")
            asked |= {"query": query, "k": k, "floor": floor, "wrong": self._wrong}
            reply, body = self._engine.ask(self._header | asked, client.URGENT, _HUNG_SECONDS, end)
            self._wrong = False
            return self._candidates(reply, body)
        except client.ChildEnded as ended:
            self._note(BadResponse(f"{self._engine.name} ended ({ended.returncode})"))
        except Exception as error:  # whatever it is, the search goes on without
            if time.monotonic() < end:  # else it was only slow
                self._note(error)
        return None

    def mistaken(self) -> None:
        """Have all codes made anew before they are asked again."""
        self._wrong = True

    def close(self) -> None:
        """Let the child go."""
        engine.let_go(self._engine)

    def _candidates(self, reply: dict[str, Any], body: bytes) -> Candidates | None:
        self.state = {name: reply.get(name) for name in ("kind", "exact", "rows", "bytes", "ready")}
        self.coming = self.quick and not reply.get("ready") and not reply.get("refused")
        if not reply.get("covered"):
            return None
        count, parts = reply["count"], 3 if reply["compared"] else 2
        if len(body) != count * parts * 8 or not math.isfinite(reply["rest"]):
            raise BadResponse(f"{self._engine.name}: the answer has the wrong length")
        ids, uppers, made = array("q"), array("d"), array("d")
        ids.frombytes(body[: count * 8])
        uppers.frombytes(body[count * 8 : count * 16])
        made.frombytes(body[count * 16 :])
        return Candidates(
            ids=ids,
            uppers=uppers,
            rest=float(reply["rest"]),
            covered=int(reply["covered"]),
            exact=bool(reply["exact"]),
            made=made if reply["compared"] else None,
        )
