"""From the host's rows and our legs to one answer in the host's shape."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import fusion, layout, legs, query, relaxed, rows
from .errors import BudgetExceeded, VectorError
from .evidence import Evidence, Found
from .legs import VectorHit, VectorQuery
from .rows import Message
from .units import Scorer

__all__ = ["Found", "Outcome", "Request", "VectorQuery", "fuse"]

OK = "ok"
OFF = "off"
OVER_BUDGET = "over budget"

VECTOR_SHARE = 2 / 3
"""How much of the time the vector leg may take, which runs before the relaxed one."""
GRACE = 1.0
"""Seconds after the deadline in which what was found by then is put together."""
_STEPS = 1000  # of SQLite's machine between two looks at the clock

T = TypeVar("T")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """What the host's ``search_messages`` was asked; names and defaults are the host's."""

    query: str = field(repr=False)
    filters: layout.Filters = field(default_factory=layout.Filters)
    limit: int = 20
    offset: int = 0
    sort: str | None = None
    fields: Sequence[str] | None = None

    @property
    def order(self) -> str | None:
        """``newest``, ``oldest`` or None; the host takes any other value for None."""
        order = self.sort.strip().lower() if isinstance(self.sort, str) else None
        return order if order in ("newest", "oldest") else None


@dataclass(frozen=True)
class Outcome:
    """The rows to return, how each message was found, and how each leg went.

    ``legs`` maps "exact", "relaxed" and "vector" to "ok", "off" or a reason. ``stale`` are
    messages that were edited since they were embedded.
    """

    rows: Rows
    found: dict[int, Found]
    legs: dict[str, str]
    stale: list[int] = field(default_factory=list)


def fuse(
    reader: sqlite3.Connection,
    host_rows: Rows,
    request: Request,
    vector: VectorQuery | None,
    *,
    relaxed: bool,
    weights: tuple[float, float, float],
    rrf_k: int,
    deadline: float | None = None,
) -> Outcome:
    """Return the host's rows fused with those of the relaxed and the vector leg.

    *host_rows* are all of the host's rows, with its ten keys, from offset 0; they come back
    as the same objects. ``weights`` are those of the exact, relaxed and vector leg. A leg
    that fails costs its own hits only; without any of ours the host's rows stand as they are.

    ``deadline``, a value of ``time.monotonic()``, ends the legs; those that are done by then
    still count, and the answer is there at most :data:`GRACE` later.
    """
    parsed = query.parse(request.query)
    status = {"exact": OK, "relaxed": OFF, "vector": OFF}
    if parsed.is_host_alone or (vector is None and not relaxed):
        return _host_alone(host_rows, request, status)
    try:
        _interrupt_after(reader, deadline, GRACE)
        shape = layout.read(reader)
        search = _Search(reader, shape, host_rows, request, parsed, status, deadline)
        return search.outcome(search.legs(vector, relaxed), weights, rrf_k)
    except sqlite3.Error as error:
        wanted = {"relaxed": relaxed, "vector": vector is not None}
        for leg in wanted:
            if wanted[leg] and status[leg] in (OK, OFF):
                status[leg] = _reason(error)
        return _host_alone(host_rows, request, status)
    finally:
        if deadline is not None:
            reader.set_progress_handler(None, 0)


def _host_alone(host_rows: Rows, request: Request, status: dict[str, str]) -> Outcome:
    page = _page(host_rows, request)
    found = {row["id"]: Found("keyword") for row in page}
    return Outcome(_projected(page, request.fields), found, status)


def _page(items: list[T], request: Request) -> list[T]:
    """Return the items from offset to limit, a negative limit meaning all, as in SQL."""
    start = max(0, request.offset)
    if start == 0 and (request.limit < 0 or len(items) <= request.limit):
        return items
    return items[start:] if request.limit < 0 else items[start : start + request.limit]


def _projected(page: Rows, fields: Sequence[str] | None) -> Rows:
    if fields is None:
        return page
    return [{key: row[key] for key in rows.KEYS if key in fields} for row in page]


def _reason(error: Exception) -> str:
    if isinstance(error, BudgetExceeded):
        return OVER_BUDGET
    if isinstance(error, sqlite3.OperationalError) and "interrupted" in str(error):
        return OVER_BUDGET
    return f"failed ({type(error).__name__})"


def _interrupt_after(
    reader: sqlite3.Connection, deadline: float | None, grace: float = 0.0
) -> None:
    """Have what runs in *reader* interrupted after *deadline*."""
    if deadline is not None:
        end = deadline + grace
        reader.set_progress_handler(lambda: time.monotonic() > end, _STEPS)


@dataclass
class _Search:
    """One search: what was asked, of which database, and how its legs went so far.

    ``deadline`` is that of the legs.
    """

    reader: sqlite3.Connection
    shape: layout.Layout
    host_rows: Rows
    request: Request
    parsed: query.Query
    status: dict[str, str]
    deadline: float | None
    stale: list[int] = field(default_factory=list)

    def legs(self, vector: VectorQuery | None, wants_relaxed: bool) -> Evidence:
        """Run all legs; one that fails leaves its reason in ``status``."""
        hits = self._vector(vector) if vector is not None else []
        gate = self._gate()
        found = None
        if wants_relaxed and self._may_relax():
            found = self._guarded("relaxed", lambda: self._relaxed(gate), None, self.deadline)
        scorer, loose = found or (relaxed.unweighted(self.parsed), [])
        ids = [row["id"] for row in self.host_rows]
        messages = {m.id: m for m in rows.load(self.reader, ids, self.shape)}
        split = legs.exact(self.host_rows, messages, self.parsed, scorer)
        partial = [messages[i] for i in split.partial]
        by_id = {hit.msg_id: hit for hit in loose}
        for hit in relaxed.incomplete(partial, scorer, gate):
            by_id.setdefault(hit.msg_id, hit)
        for msg_id in split.exact:
            by_id.pop(msg_id, None)
        floor = self._floor(vector) if vector is not None else 0.0
        return Evidence(split, by_id, {hit.message.id: hit for hit in hits}, floor, scorer)

    def _may_relax(self) -> bool:
        """False without a full-text index, and where the host found what is meant literally."""
        indexed = self.shape.word_table or self.shape.trigram_table
        return bool(indexed) and not (self.parsed.is_literal and self.host_rows)

    def _floor(self, wanted: VectorQuery) -> float:
        return wanted.floor + (legs.SORTED_FLOOR if self.request.order else 0.0)

    def _gate(self) -> relaxed.Gate:
        if self.request.order:
            return relaxed.Gate(relaxed.SORTED_GATE, relaxed.SORTED_GATE)
        beside = self.status["vector"] == OK
        return relaxed.Gate(relaxed.GATE if beside else relaxed.ALONE_GATE, relaxed.LEAST)

    def _vector(self, wanted: VectorQuery) -> list[VectorHit]:
        floor = self._floor(wanted)
        deadline = self.deadline
        if deadline is not None:
            now = time.monotonic()
            deadline = now + (deadline - now) * VECTOR_SHARE
        return self._guarded(
            "vector",
            lambda: legs.vector(
                self.reader,
                self.shape,
                self.parsed,
                self.request.filters,
                wanted,
                floor,
                self.stale,
                deadline,
            ),
            [],
            deadline,
        )

    def _relaxed(self, gate: relaxed.Gate) -> tuple[Scorer, list[relaxed.Hit]]:
        scorer, found = relaxed.scorer_of(self.reader, self.shape, self.parsed)
        hits = relaxed.search(
            self.reader,
            self.shape,
            self.parsed,
            self.request.filters,
            scorer,
            found,
            gate,
            self.deadline,
        )
        return scorer, hits

    def _guarded(self, leg: str, run: Callable[[], T], otherwise: T, deadline: float | None) -> T:
        try:
            _interrupt_after(self.reader, deadline)
            result = run()
        except (sqlite3.Error, VectorError, BudgetExceeded) as error:
            self.status[leg] = _reason(error)
            return otherwise
        finally:
            _interrupt_after(self.reader, self.deadline, GRACE)
        self.status[leg] = OK
        return result

    def outcome(self, found: Evidence, weights: tuple[float, float, float], rrf_k: int) -> Outcome:
        """Put everything found in one order and return the page that was asked for."""
        known = {row["id"]: row for row in self.host_rows}
        messages = {i: hit.message for i, hit in found.near.items()}
        missing = [i for i in found.loose if i not in messages and i not in known]
        messages.update((m.id, m) for m in rows.load(self.reader, missing, self.shape))
        sessions = {i: row["session_id"] for i, row in known.items()}
        sessions.update((i, m.session_id) for i, m in messages.items())
        found.loose = {i: hit for i, hit in found.loose.items() if i in sessions}
        order = self._order(found, rows.roots(self.reader, sessions), weights, rrf_k)
        settled = {sessions[i] for i in found.split.exact}
        order = [
            i
            for i in order
            if i in sessions and (i in known or i in found.near or sessions[i] not in settled)
        ]
        if self.request.order:
            times = {i: m.timestamp for i, m in messages.items()}
            times.update((i, row["timestamp"]) for i, row in known.items())
            order.sort(key=times.__getitem__, reverse=self.request.order == "newest")
        page = _page(order, self.request)
        shaped = [known[i] if i in known else self._row(messages[i], found) for i in page]
        how = {i: found.how(i) for i in page}
        return Outcome(_projected(shaped, self.request.fields), how, self.status, self.stale)

    def _order(
        self,
        found: Evidence,
        root_of: dict[int, str],
        weights: tuple[float, float, float],
        rrf_k: int,
    ) -> list[int]:
        fused = fusion.fuse(found.rankings(root_of, weights), root_of, rrf_k)
        host = [row["id"] for row in self.host_rows]
        host_first = self.parsed.host_first or self.status["vector"] != OK
        return list(dict.fromkeys([*host, *fused] if host_first else [*fused, *host]))

    def _row(self, message: Message, found: Evidence) -> dict[str, Any]:
        hit = found.near.get(message.id)
        if hit is None or message.id in found.by_keyword:
            snippet = rows.highlighted(message.searchable, found.scorer)
        else:
            snippet = rows.passage(message.text, hit.start, hit.end)
        return rows.host_row(self.reader, message, snippet)
