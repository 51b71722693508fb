"""What our search adds to one call of the host's ``search_messages``, and to the tool's JSON.

The host's own rows are there before any of this runs; whatever fails here, they are the
answer.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from . import query, redaction, search, store
from .call import Call, Rows
from .config import Settings
from .embedders import sending
from .engine import Engine, QueryVector
from .errors import LegFailed
from .guard import run_within
from .rows import KEYS

LEGS_SECONDS = 3.0
"""Budget of our legs and the fusion, on top of that of the query's vector."""
OPENING_MESSAGES = 400
"""In how many embedded messages the ``opening`` of the profiles was measured."""


@dataclass
class Trace:
    """What the searches inside one call of the tool found, for its JSON."""

    found: dict[int, search.Found] = field(default_factory=dict)
    sessions: dict[str, search.Found] = field(default_factory=dict)
    semantic: dict[str, Any] | None = None


tool_call: contextvars.ContextVar[Trace | None] = contextvars.ContextVar(
    "hermes_patch_trace", default=None
)


def widen(engine: Engine, call: Call, rows: Rows) -> Rows:
    """Return the fused rows for *call*; the host's *rows* where we have nothing to add."""
    text = call.arguments.get("query")
    if not isinstance(text, str) or not text.strip():
        return rows
    # Whatever may wait, the first reading of the configuration included, has a time limit.
    parsed, settings = run_within(
        LEGS_SECONDS, lambda: (query.parse(text), engine.settings), "reading the settings"
    )
    if not _wanted(settings):
        return rows
    trace = tool_call.get()
    typing = parsed.is_prefix_search and trace is None
    if typing and asyncio._get_running_loop() is not None:
        return rows  # a search box whose event loop would wait for us
    seconds = 0.0 if typing else settings.query_budget

    def ask(plain: str) -> QueryVector:
        return engine.query_vector(plain, seconds, cached_only=typing)

    outcome, semantic = run_within(
        seconds + LEGS_SECONDS, lambda: _fuse(engine, call, rows, ask, not typing), "search"
    )
    _check(outcome, semantic, _keys(rows, call))
    if trace is not None:
        for row in outcome.rows:
            if row.get("id") in outcome.found:
                trace.sessions.setdefault(row["session_id"], outcome.found[row["id"]])
        trace.found.update(outcome.found)
        trace.semantic = semantic
    return outcome.rows


def typed(engine: Engine, call: Call, rows: Rows, ask: Callable[[str], QueryVector]) -> Rows:
    """Return the fused rows for a query that was typed into a search box.

    There is no relaxed leg, and *ask* gives the query's vector. The host may have closed its
    handle by now.
    """
    if not _wanted(engine.settings):
        return rows
    outcome, semantic = _fuse(engine, replace(call, reopen=True), rows, ask, relaxed=False)
    _check(outcome, semantic, _keys(rows, call))
    return outcome.rows


def _wanted(settings: Settings) -> bool:
    """False when no leg of ours may speak: provider off, or both weights zero."""
    _, relaxed, vector = settings.weights
    return settings.enabled and (relaxed > 0 or vector > 0)


def _keys(rows: Rows, call: Call) -> list[str]:
    """Return the keys that every row of this call has: those of the host's own, if any."""
    fields = call.arguments.get("fields")
    asked = KEYS if fields is None else fields
    return [key for key in KEYS if key in (rows[0] if rows else asked)]


def _check(outcome: search.Outcome, semantic: Any, keys: list[str]) -> None:
    """Raise TypeError or ValueError for anything the host or its tool could stumble over."""
    if not isinstance(outcome.rows, list) or not isinstance(semantic, dict):
        raise TypeError("the search gave something else than rows")
    for row in outcome.rows:
        if not isinstance(row, dict) or any(key not in row for key in keys):
            raise TypeError("a fused row is no row of the host's")
    for found in outcome.found.values():
        if not math.isfinite(found.similarity or 0.0):
            raise ValueError("a similarity is no number")


def _fuse(
    engine: Engine, call: Call, rows: Rows, ask: Callable[[str], QueryVector], relaxed: bool
) -> tuple[search.Outcome, dict[str, Any]]:
    engine.check_same_file(call.handle)
    request = call.request()
    # Secrets are looked for in the query as typed: in plain words none would be recognised.
    safe = sending.query(request.query, engine.settings).replace(redaction.MARK, " ")
    plain = query.plain_text(safe)
    host_alone = query.parse(request.query).is_host_alone
    _, relaxed_weight, vector_weight = engine.settings.weights
    if host_alone or not plain or not vector_weight:
        answer = QueryVector(None, None, "")
    else:
        answer = ask(plain)
    host_rows = call.widened(rows)
    with engine.reader() as conn:
        outcome = search.fuse(
            conn,
            host_rows,
            request,
            _vector_query(engine, conn, answer),
            relaxed=relaxed and relaxed_weight > 0,
            weights=engine.settings.weights,
            rrf_k=engine.settings.rrf_k,
            deadline=time.monotonic() + LEGS_SECONDS - search.GRACE,
        )
        semantic = describe(engine, conn, answer.reason or _failed(outcome))
    engine.stale.update(outcome.stale)
    _tell(engine, outcome)
    return outcome, semantic


def _tell(engine: Engine, outcome: search.Outcome) -> None:
    """Let ``status`` know how the legs went."""
    for leg in ("relaxed", "vector"):
        status = outcome.legs.get(leg, search.OFF)
        if status == search.OK:
            engine.guard.succeeded(f"{leg} leg")
        elif status != search.OFF:
            engine.guard.note(f"{leg} leg", LegFailed(f"the {leg} leg {status}"))


def _failed(outcome: search.Outcome) -> str:
    """Return why the vector leg found nothing though there was a vector to ask with."""
    status = outcome.legs.get("vector", search.OFF)
    return "" if status in (search.OK, search.OFF) else f"the vector search {status}"


def _vector_query(
    engine: Engine, conn: sqlite3.Connection, answer: QueryVector
) -> search.VectorQuery | None:
    if answer.vector is None or answer.space is None:
        return None
    return search.VectorQuery(
        space_id=answer.space.id,
        dims=answer.space.dims,
        vector=answer.vector,
        floor=engine.floor,
        opening=opening(engine.floor, engine.opening, engine.coverage(conn).embedded),
        language_gap=engine.language_gap,
        source=engine.coarse,
    )


def opening(floor: float, full: float | None, embedded: int) -> float | None:
    """Return what the best hit must reach in a store of so many embedded messages.

    The best of n unrelated messages comes nearer as n grows, roughly with its logarithm;
    *full* was measured at :data:`OPENING_MESSAGES`.
    """
    if full is None:
        return None
    share = math.log1p(embedded) / math.log1p(OPENING_MESSAGES)
    return floor + (full - floor) * min(1.0, share)


def describe(engine: Engine, conn: sqlite3.Connection, reason: str) -> dict[str, Any]:
    """Return the tool's ``semantic`` entry: status, coverage and model."""
    coverage = engine.coverage(conn) if store.exists(conn) else store.Coverage(0, 0, 0)
    status = f"unavailable: {reason}" if reason else "ok"
    result: dict[str, Any] = {
        "status": status,
        "coverage": round(coverage.ratio, 3),
        "model": engine.embedder.describe().model,
    }
    if reason:
        result["note"] = "Searched by keywords only; an empty answer is no proof of absence."
    elif coverage.ratio < 0.99:
        result["note"] = (
            f"{coverage.embedded} of {coverage.embeddable} messages can be found by meaning so "
            "far; an empty answer is no proof of absence."
        )
    return result


def annotate(answer: str, trace: Trace) -> str:
    """Return the tool's JSON with ``search_type``, ``similarity`` and ``semantic`` added."""
    data = json.loads(answer)
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        return answer
    for result in data["results"]:
        found = _found(result, trace)
        if found is not None:
            result["search_type"] = found.search_type
            if found.similarity is not None:
                result["similarity"] = round(found.similarity, 3)
    data["semantic"] = trace.semantic
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def _found(result: Any, trace: Trace) -> search.Found | None:
    if not isinstance(result, dict):
        return None
    msg_id = result.get("match_message_id")
    if isinstance(msg_id, int):
        return trace.found.get(msg_id)
    return trace.sessions.get(str(result.get("session_id")))
