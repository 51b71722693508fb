"""What ``hermes-patch eval`` does inside Hermes: writes a set, asks its questions.

Run as a script, in a process of its own, so that Hermes loads its plugins by itself and finds
our package only where its plugin loader puts it. Imports nothing of ours until then.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

_HIDDEN = ["subagent", "tool"]
_ROLES = ["user", "assistant"]
_TOP = 10
_PACE = 60.0  # seconds between two messages
_PATIENCE = 60.0
_TRIES = 3

Hits = list[dict[str, Any]]


def about(_given: Any) -> dict[str, Any]:
    """Return name and version of this Hermes."""
    import importlib.metadata

    names = importlib.metadata.packages_distributions().get("hermes_state", [])
    version = f"{names[0]} {importlib.metadata.version(names[0])}" if names else "Hermes"
    return {"hermes": version}


def fill(sessions: list[dict[str, Any]]) -> int:
    """Write *sessions* through the real SessionDB; return the number of messages."""
    from hermes_state import SessionDB  # type: ignore[import-not-found]

    db = SessionDB(_database())
    times = []
    for session in sessions:
        db.create_session(session["id"], source="cli")
        if session["title"]:
            db.set_session_title(session["id"], session["title"])
        for number, message in enumerate(session["messages"]):
            at = session["started_at"] + _PACE * number
            times.append((at, db.append_message(session["id"], message["role"], message["text"])))
    db.close()
    with contextlib.closing(sqlite3.connect(_database())) as conn:
        with conn:
            conn.executemany("UPDATE messages SET timestamp = ? WHERE id = ?", times)
            started = [(session["started_at"], session["id"]) for session in sessions]
            conn.executemany("UPDATE sessions SET started_at = ? WHERE id = ?", started)
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return len(times)


def ask(given: dict[str, Any]) -> dict[str, Any]:
    """Put ``queries`` to the real session_search, in ``mode``; plugins are loaded.

    With ``thresholds`` one leg of ours answers alone, at each of them and at those in use.
    """
    import model_tools  # type: ignore[import-not-found]  # noqa: F401  # loads the plugins
    from hermes_state import SessionDB

    db = SessionDB(_database())
    ours = sys.modules["hermes_patch"]
    wanted = given["mode"] != "host"
    if ours.status()["active"] is not wanted:
        raise SystemExit(f"the patch is {'not active' if wanted else 'active'}")
    model = _model(ours, db) if wanted else {}
    watch = _Watch(given["mode"]) if wanted else None
    if "thresholds" in given:
        watch = _Sweep(given["mode"], given["thresholds"], model)
        model |= {"thresholds": watch.thresholds, "used": watch.used}
    one = _asker(db, watch)
    answers: dict[str, Any] = {}
    for query in given["queries"]:
        found = one(query["id"], query["text"])
        answers[query["id"]] = watch.swept if isinstance(watch, _Sweep) else found
    db.close()
    return {"answers": answers, **model}


def _database() -> Path:
    return Path(os.environ["HERMES_HOME"]) / "state.db"


def _model(ours: Any, db: Any) -> dict[str, Any]:
    from hermes_patch import recall

    engine = ours._host.engine_of(db)
    with engine.reader() as conn:
        embedded = engine.coverage(conn).embedded
    return {
        "model": engine.embedder.describe().model,
        "floor": engine.floor,
        "opening": recall.opening(engine.floor, engine.opening, embedded),
    }


class _Watch:
    """Sees to it that every question is answered by the legs of its mode, and says by which.

    A leg that fails leaves the host's rows, which would be counted as an answer of the mode.
    In the mode ``vector`` the host's rows are kept out: without a vote they would still be
    the end of every list.
    """

    def __init__(self, mode: str) -> None:
        from hermes_patch import host, recall, search

        self.alone = mode not in ("keyword", "hybrid")
        self.legs: dict[str, str] | None = None
        self._fuse = search.fuse
        vars(search)["fuse"] = self.fuse
        recall.LEGS_SECONDS = host.PREPARE_SECONDS = _PATIENCE

    def fuse(self, reader: Any, rows: Any, request: Any, vector: Any, **options: Any) -> Any:
        """Stand in for ``search.fuse``."""
        rows = [] if self.alone else rows
        outcome = self._fuse(reader, rows, request, vector, **options)
        self.legs = outcome.legs
        return outcome

    def problem(self, semantic: dict[str, Any] | None) -> str:
        """Return why the last question was not answered as it should be, "" if it was."""
        legs, self.legs = self.legs, None
        if legs is None or semantic is None:
            return "the search failed, only Hermes answered"
        failed = {leg: how for leg, how in legs.items() if how not in ("ok", "off")}
        if semantic["status"] == "ok" and not failed:
            return ""
        return f"{semantic['status']}; failed legs: {failed or 'none'}"

    def keeps(self, result: dict[str, Any]) -> bool:
        """Tell whether a result belongs to the mode; the tool looks for titles by itself."""
        return not self.alone or result.get("matched_role") != "session_title"


class _Sweep(_Watch):
    """Has one leg of ours find everything, and ranks that as the search would at thresholds.

    The mode ``floor`` is the vector leg and what its best hit must reach, at the floor in use
    or, below that, with the threshold for a floor; ``gate`` the relaxed one and its gate.
    """

    def __init__(self, mode: str, thresholds: Sequence[float], model: dict[str, Any]) -> None:
        from hermes_patch import legs, relaxed, search

        super().__init__(mode)
        used, depth = {"floor": model["floor"], "opening": model["opening"]}, legs.DEPTH
        if mode == "gate":
            used = {"alone": relaxed.ALONE_GATE, "beside vectors": relaxed.GATE}
            vars(relaxed).update(GATE=0.0, ALONE_GATE=0.0)
            # A gate lets hits of less relevance come up in the place of those it keeps out.
            vars(legs)["DEPTH"] = relaxed.EXAMINED
        self.used = {name: value for name, value in used.items() if value is not None}
        self.thresholds = sorted({*thresholds, *self.used.values()})
        self.swept: dict[str, Any] = {}
        self._floor, self._depth = 0.0, depth
        self._outcome = search._Search.outcome
        search._Search.outcome = self._stand_in()  # type: ignore[method-assign]

    def fuse(self, reader: Any, rows: Any, request: Any, vector: Any, **options: Any) -> Any:
        """Stand in for ``search.fuse``."""
        if vector is not None:
            self._floor = vector.floor
            vector = replace(vector, floor=-1.0, opening=None)
        return super().fuse(reader, rows, request, vector, **options)

    def _stand_in(self) -> Callable[..., Any]:
        def outcome(search: Any, found: Any, weights: Any, rrf_k: int) -> Any:
            self.swept = self._sweep(search, found, weights, rrf_k)
            return self._outcome(search, found, weights, rrf_k)

        return outcome

    def _sweep(self, search: Any, found: Any, weights: Any, rrf_k: int) -> dict[str, Any]:
        from hermes_patch import rows

        messages = rows.load(search.reader, [*found.near, *found.loose], search.shape)
        sessions = {message.id: message.session_id for message in messages}
        found.loose = {i: hit for i, hit in found.loose.items() if i in sessions}
        found.near = {i: hit for i, hit in found.near.items() if i in sessions}
        roots = rows.roots(search.reader, sessions)
        answers = []
        for threshold in self.thresholds:
            left = _reaching(found, threshold, self._floor, self._depth)
            order = search._order(left, roots, weights, rrf_k)
            answers.append(list(dict.fromkeys(sessions[i] for i in order))[:_TOP])
        best = max(found.near.values(), key=lambda hit: hit.strength, default=None)
        return {"answers": answers, "best": best and [best.message.session_id, best.strength]}


def _reaching(found: Any, threshold: float, floor: float, depth: int) -> Any:
    """Return what a search would have found with *threshold*, of which it ranks *depth*."""
    least = min(threshold, floor)
    opened = any(hit.strength >= threshold for hit in found.near.values())
    near = {i: hit for i, hit in found.near.items() if opened and hit.strength >= least}
    loose = [(i, hit) for i, hit in found.loose.items() if hit.coverage >= threshold]
    return replace(found, near=near, loose=dict(loose[:depth]), floor=least)


def _asker(db: Any, watch: _Watch | None) -> Callable[[str, str], Hits]:
    search = _search(db, watch)

    def one(name: str, text: str) -> Hits:
        problem = ""
        for attempt in range(_TRIES):
            time.sleep(attempt)
            found, semantic = search(text)
            problem = watch.problem(semantic) if watch is not None else ""
            if not problem:
                return found
        raise SystemExit(f"question {name}: {problem}")

    return one


def _search(db: Any, watch: _Watch | None) -> Callable[[str], tuple[Hits, Any]]:
    """Return what asks one question: the hits, and what our side says of the search."""
    import tools.session_search_tool as tool  # type: ignore[import-not-found]

    place = _places()
    if "sort" not in inspect.signature(tool.session_search).parameters:
        return _below_the_tool(db, place)

    def search(text: str) -> tuple[Hits, Any]:
        answer = json.loads(tool.session_search(query=text, db=db, limit=_TOP))
        results = [r for r in answer.get("results", []) if watch is None or watch.keeps(r)]
        hits = [_hit(r, r.get("match_message_id"), place) for r in results]
        return hits, answer.get("semantic")

    return search


def _below_the_tool(db: Any, place: dict[int, int]) -> Callable[[str], tuple[Hits, Any]]:
    """Ask the database; the tool of older releases has a model summarise every session."""
    from hermes_patch import recall

    def search(text: str) -> tuple[Hits, Any]:
        trace = recall.Trace()
        token = recall.tool_call.set(trace)
        rows = db.search_messages(text, role_filter=_ROLES, exclude_sources=_HIDDEN, limit=50)
        recall.tool_call.reset(token)
        best: dict[str, dict[str, Any]] = {}
        for row in rows:
            best.setdefault(row["session_id"], row)
        found = list(best.values())[:_TOP]
        return [_hit(row, row["id"], place) for row in found], trace.semantic

    return search


def _places() -> dict[int, int]:
    """Return the place of every message in its session, by its id in the database."""
    query = "SELECT id, session_id FROM messages ORDER BY id"
    with contextlib.closing(sqlite3.connect(_database())) as conn:
        rows = conn.execute(query).fetchall()
    seen: dict[str, int] = {}
    places = {}
    for msg_id, session_id in rows:
        places[msg_id] = seen.get(session_id, 0)
        seen[session_id] = places[msg_id] + 1
    return places


def _hit(row: dict[str, Any], msg_id: int | None, place: dict[int, int]) -> dict[str, Any]:
    return {
        "session": row["session_id"],
        "place": None if msg_id is None else place.get(msg_id),
    }


def main(step: str, given: str, result: str) -> None:
    """Run *step* with the JSON in the file *given*; write the outcome to the file *result*."""
    data = json.loads(Path(given).read_text("utf-8"))
    steps: dict[str, Callable[[Any], Any]] = {"about": about, "fill": fill, "ask": ask}
    with contextlib.redirect_stdout(io.StringIO()):
        outcome = steps[step](data)
    Path(result).write_text(json.dumps(outcome), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
