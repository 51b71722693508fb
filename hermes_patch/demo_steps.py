"""What ``hermes-patch demo`` does inside Hermes: writes the sample history, asks questions.

Run as a script, in a process of its own, so that Hermes loads its plugins by itself and finds
our package only where its plugin loader puts it. Imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_DAY = 86_400.0
_PACE = 95.0  # seconds between two messages


def build(sessions: list[dict[str, Any]]) -> list[str]:
    """Write *sessions* through the real SessionDB; return their ids."""
    from hermes_state import SessionDB  # type: ignore[import-not-found]

    db = SessionDB()
    now = time.time()
    for session in sessions:
        session_id = session["id"]
        db.create_session(session_id, "cli")
        for index, text in enumerate(session["messages"]):
            db.append_message(session_id, "assistant" if index % 2 else "user", text)
        db.set_session_title(session_id, session["title"])
        db.end_session(session_id, "cli_close")
        _move_to(db, session_id, now - session["days"] * _DAY)
    db.close()
    return [session["id"] for session in sessions]


def _move_to(db: Any, session_id: str, start: float) -> None:
    """Date a session and its messages back to *start*, in seconds since the epoch."""

    def write(conn: Any) -> None:
        query = "SELECT id FROM messages WHERE session_id = ? ORDER BY id"
        ids = [row[0] for row in conn.execute(query, (session_id,)).fetchall()]
        conn.executemany(
            "UPDATE messages SET timestamp = ? WHERE id = ?",
            [(start + index * _PACE, message_id) for index, message_id in enumerate(ids)],
        )
        conn.execute(
            "UPDATE sessions SET started_at = ?, ended_at = ? WHERE id = ?",
            (start, start + len(ids) * _PACE, session_id),
        )

    db._execute_write(write)


def ask(questions: list[str]) -> list[dict[str, Any]]:
    """Return what the real session_search answers to each of *questions*, plugins loaded."""
    import model_tools  # type: ignore[import-not-found]  # noqa: F401  # loads the plugins
    from hermes_state import SessionDB
    from tools import session_search_tool  # type: ignore[import-not-found]

    db = SessionDB()
    answers = []
    for question in questions:
        answers.append(json.loads(session_search_tool.session_search(question, db=db, limit=5)))
    db.close()
    return answers


def main(step: str, given: str, result: str) -> None:
    """Run *step* with the JSON in the file *given*; write the outcome to the file *result*."""
    data = json.loads(Path(given).read_text("utf-8"))
    outcome = build(data) if step == "build" else ask(data)
    Path(result).write_text(json.dumps(outcome), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
