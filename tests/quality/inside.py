"""The part of ``recall`` that runs inside a Hermes.

``fill SET``: write a retrieval set through the real SessionDB. ``ask SET MODE…``: put every
question to the real ``session_search`` in each mode; the last line is a JSON object of the
found sessions, ``{mode: {question id: [session id, …]}}``, at most ten for each.
"""

import contextlib
import inspect
import io
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HIDDEN = ["subagent", "tool"]
ROLES = ["user", "assistant"]
TOP = 10


def database() -> Path:
    return Path(os.environ["HERMES_HOME"]) / "state.db"


def fill(given: dict[str, Any]) -> None:
    from hermes_state import SessionDB

    db = SessionDB(database())
    times = []
    for session in given["sessions"]:
        db.create_session(session["id"], source="cli")
        for number, message in enumerate(session["messages"]):
            at = session["started_at"] + 60 * number
            times.append((at, db.append_message(session["id"], message["role"], message["text"])))
    db.close()
    with contextlib.closing(sqlite3.connect(database())) as conn, conn:
        conn.executemany("UPDATE messages SET timestamp = ? WHERE id = ?", times)
        started = [(session["started_at"], session["id"]) for session in given["sessions"]]
        conn.executemany("UPDATE sessions SET started_at = ? WHERE id = ?", started)


def only(mode: str) -> Callable[..., Any]:
    """Return a stand-in for ``search.fuse`` that has the legs of *mode* alone."""
    from hermes_patch import search

    fuse = search.fuse

    def fuse_some(reader: Any, rows: Any, request: Any, vector: Any, **options: Any) -> Any:
        if mode == "keyword":
            vector = None
        elif mode == "vector":
            rows, options["relaxed"] = [], False
        outcome = fuse(reader, rows, request, vector, **options)
        expected = {"keyword": ("ok", "off"), "vector": ("off", "ok"), "hybrid": ("ok", "ok")}
        legs = (outcome.legs["relaxed"], outcome.legs["vector"])
        if legs not in (expected[mode], ("off", "off")):
            raise SystemExit(f"{mode}: the relaxed and the vector leg are {legs}")
        return outcome

    return fuse_some


def asker(db: Any) -> Callable[[str], list[str]]:
    import tools.session_search_tool as tool

    if "sort" in inspect.signature(tool.session_search).parameters:
        return lambda text: [
            result["session_id"]
            for result in json.loads(tool.session_search(query=text, db=db, limit=TOP))["results"]
        ]

    def through_the_database(text: str) -> list[str]:
        # The tool of older releases has a model summarise every session.
        rows = db.search_messages(text, role_filter=ROLES, exclude_sources=HIDDEN, limit=50)
        return list(dict.fromkeys(row["session_id"] for row in rows))[:TOP]

    return through_the_database


def ask(given: dict[str, Any], modes: list[str]) -> dict[str, dict[str, list[str]]]:
    import model_tools  # noqa: F401  Hermes discovers its plugins while this is imported
    from hermes_state import SessionDB

    import hermes_patch
    from hermes_patch import search

    questions = [*given["queries"], *given.get("unanswerable", [])]
    db = SessionDB(database())
    found = {}
    real = search.fuse
    for mode in sorted(modes, key=lambda mode: mode == "host"):
        if mode == "host":
            hermes_patch.uninstall()
        else:
            search.fuse = only(mode)
        one = asker(db)
        found[mode] = {question["id"]: one(question["text"]) for question in questions}
        search.fuse = real
    db.close()
    return found


def main() -> None:
    command, path, *modes = sys.argv[1:]
    given = json.loads(Path(path).read_text(encoding="utf-8"))
    if command == "fill":
        fill(given)
        return
    with contextlib.redirect_stdout(io.StringIO()):
        found = ask(given, modes)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
