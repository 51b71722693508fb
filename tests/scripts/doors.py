"""Go through the doors into ``messages``, as told on standard input; run inside a patched Hermes.

Each line is a JSON object with ``do``, the name of a door below, and its arguments. Each is
answered by one line: ``{"result": …}``, or ``{"missing": reason}`` where this Hermes has no
such door. Which one is there is seen from the class, never from a version.
"""

import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

home = Path(os.environ["HERMES_HOME"])
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
log = os.open(home.parent / "doors.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(log, 1)
os.dup2(log, 2)

import model_tools  # noqa: E402, F401  Hermes discovers its plugins while this is imported
import tools.session_search_tool as tool  # noqa: E402
from hermes_state import SessionDB  # noqa: E402

# The plugin is loaded by now; a few seconds between two looks for edits are too many here.
sys.modules["hermes_patch.sweeper"].RECENT_SECONDS = 0.5

Message = dict[str, Any]
db: Any = SessionDB(home / "state.db")
flushed: dict[str, list[Message]] = {}


class MissingError(Exception):
    """This Hermes has no such door."""


def needs(name: str, parameter: str | None = None) -> Any:
    method = getattr(db, name, None)
    if method is None:
        raise MissingError(f"this Hermes has no {name}")
    if parameter is not None and not takes(method, parameter):
        raise MissingError(f"{name} of this Hermes takes no {parameter}")
    return method


def takes(method: Callable[..., Any], parameter: str) -> bool:
    return parameter in inspect.signature(method).parameters


def has_column(name: str) -> bool:
    with db._lock:
        return any(row[1] == name for row in db._conn.execute("PRAGMA table_info(messages)"))


def sql(statement: str, *params: Any) -> int:
    return int(db._execute_write(lambda conn: conn.execute(statement, params).rowcount))


def dicts(texts: list[str]) -> list[Message]:
    return [{"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(texts)]


def append(session: str, texts: list[str], source: str = "cli") -> list[int]:
    db.create_session(session, source=source)
    return [
        db.append_message(session, message["role"], message["content"]) for message in dicts(texts)
    ]


def append_as(session: str, role: str, text: str) -> int:
    return int(db.append_message(session, role, text))


def batch(session: str, messages: list[Message]) -> None:
    method = needs("append_messages_batch")
    db.create_session(session, source="cli")
    method(session, messages)


def reflush(session: str, texts: list[str]) -> None:
    """Flush the same live messages again with other words, as the agent does after a repair."""
    if session not in flushed:
        flushed[session] = dicts(texts)
        batch(session, flushed[session])
        return
    before = len(db.get_messages(session))
    for message, text in zip(flushed[session], texts, strict=True):
        message["content"] = text
    batch(session, flushed[session])
    if len(db.get_messages(session)) > before:
        raise MissingError("append_messages_batch of this Hermes never changes a row")


def clear(session: str, texts: list[str]) -> None:
    needs("clear_messages")(session)
    append(session, texts)


def replace(session: str, texts: list[str], **options: Any) -> None:
    for name in options:
        needs("replace_messages", name)
    needs("replace_messages")(session, dicts(texts), **options)


def compact(session: str, texts: list[str], tail: int) -> None:
    method = needs("archive_and_compact")
    options = {"tail_count": tail} if takes(method, "tail_count") else {}
    method(session, dicts(texts), **options)


def rotate(session: str, child: str, texts: list[str], meanwhile: str) -> None:
    """Compact into a new session; *meanwhile* arrives in the old one during the summary."""
    if hasattr(db, "publish_compression_child"):
        mark = db.get_active_message_watermark(session)
        db.append_message(session, "user", meanwhile)
        db.publish_compression_child(
            parent_session_id=session,
            child_session_id=child,
            source="cli",
            messages=dicts(texts),
            require_compression_lease=False,
            watermark=mark,
        )
        return
    db.append_message(session, "user", meanwhile)
    db.end_session(session, "compression")
    db.create_session(child, source="cli", parent_session_id=session)
    if hasattr(db, "replace_messages"):
        db.replace_messages(child, dicts(texts))
    else:
        append(child, texts)


def branch(session: str, child: str) -> None:
    history = db.get_messages_as_conversation(session)
    db.end_session(session, "branched")
    db.create_session(
        child,
        source="cli",
        parent_session_id=session,
        model_config={"_branched_from": session},
    )
    rows = [{"role": message["role"], "content": message["content"]} for message in history]
    if hasattr(db, "append_messages_batch"):
        db.append_messages_batch(child, rows, chunk_rows=500)
        return
    for row in rows:
        db.append_message(session_id=child, **row)


def bring_in(sessions: list[dict[str, Any]]) -> Any:
    return needs("import_sessions")(sessions)


def deliver(session: str, text: str, metadata: dict[str, Any]) -> int:
    method = needs("append_delegation_delivery")
    db.create_session(session, source="cli")
    return int(method(session, text, metadata))


def rewind(session: str, message: int) -> None:
    needs("rewind_to_message")(session, message)


def restore(session: str, message: int) -> None:
    if not has_column("active"):
        raise MissingError("this Hermes has no active flag")
    if hasattr(db, "restore_rewound"):
        db.restore_rewound(session, message)
    else:
        sql("UPDATE messages SET active = 1 WHERE session_id = ? AND id >= ?", session, message)


def born_inactive(session: str, text: str) -> int:
    if not has_column("active"):
        raise MissingError("this Hermes has no active flag")
    db.create_session(session, source="cli")
    statement = (
        "INSERT INTO messages (session_id, role, content, timestamp, active) "
        "VALUES (?, 'user', ?, ?, 0)"
    )
    params = (session, text, time.time())
    return int(db._execute_write(lambda conn: conn.execute(statement, params).lastrowid))


def edit(session: str, message: int, text: str) -> str:
    """Change a text in place; returns by which door."""
    if hasattr(db, "set_user_message_content"):
        assert db.set_user_message_content(session, message, text) == 1
        return "set_user_message_content"
    assert sql("UPDATE messages SET content = ? WHERE id = ?", text, message) == 1
    return "UPDATE"


def delegate(session: str, child: str, texts: list[str]) -> None:
    db.create_session(
        child, source="cli", parent_session_id=session, model_config={"_delegate_from": session}
    )
    append(child, texts)


def delete(session: str) -> bool:
    return bool(needs("delete_session")(session))


def delete_many(sessions: list[str]) -> Any:
    return needs("delete_sessions")(sessions)


def prune(session: str, source: str) -> int:
    db.end_session(session, "done")
    return int(needs("prune_sessions")(older_than_days=0, source=source))


def look(query: str, vector: list[float], ask_tool: bool) -> dict[str, Any]:
    """Return what the tool, the host's search and the vectors alone say."""
    answer = tool.session_search(query=query, db=db, limit=5) if ask_tool else '{"results": []}'
    return {
        "results": json.loads(answer)["results"],
        "rows": [row["id"] for row in db.search_messages(query=query, limit=50)],
        "nearest": [row["msg_id"] for row in db.search_by_vector(vector, min_similarity=0.8)],
    }


def touch() -> None:
    """Write something that is no message."""
    db.create_session("touched", source="cli")


def idle() -> bool:
    """Wait until the worker has nothing to do; False when it still has after a minute."""
    host = sys.modules["hermes_patch"]._host
    worker = host.workers.of(host.engine_of(db))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        worker.idle.wait(60)
        if worker.idle.is_set() and not worker._event.is_set():
            return True
    return False


def answer(line: str) -> dict[str, Any]:
    given = json.loads(line)
    try:
        return {"result": globals()[given.pop("do")](**given)}
    except MissingError as missing:
        return {"missing": str(missing)}


for line in sys.stdin:
    print(json.dumps(answer(line)), file=answers, flush=True)
db.close()
