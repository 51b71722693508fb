"""Ask the real session_search; run inside a Hermes, with or without the plugin.

Arguments: a JSON object with ``queries`` and, optionally, ``append`` (session -> texts) and
``settle`` (seconds to wait for the worker). Prints a JSON object on its last line.
"""

import contextlib
import io
import json
import os
import sys
import threading
import time
from pathlib import Path

given = json.loads(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()):
    import model_tools  # noqa: F401  Hermes discovers its plugins while this is imported
    import tools.session_search_tool as tool
    from hermes_state import SessionDB

    ours = sys.modules.get("hermes_patch")
    db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
    mine = threading.get_ident()
    traced: list[tuple[int, str]] = []
    db._conn.set_trace_callback(lambda sql: traced.append((threading.get_ident(), sql)))
    for session, texts in given.get("append", {}).items():
        db.create_session(session, source="cli")
        for text in texts:
            db.append_message(session, "user", text)
    if ours is not None and ours._host is not None:
        engine = ours._host.engine_of(db)
        if given.get("settle"):
            ours._host.workers.of(engine).idle.wait(given["settle"])
    db._conn.set_trace_callback(None)
    answers, seconds = [], []
    for query in given["queries"]:
        started = time.perf_counter()
        answers.append(tool.session_search(query=query, db=db, limit=5))
        seconds.append(time.perf_counter() - started)
    host_ids = [row["id"] for row in db.search_messages(query=given["queries"][0], limit=50)]
    result = {
        "answers": answers,
        "seconds": seconds,
        "ids": host_ids,
        "status": ours.status() if ours is not None else None,
        "vectors": db.embedding_count() if given.get("count") else None,
        "description": tool.SESSION_SEARCH_SCHEMA["description"],
        "ours_on_callers_thread": [
            sql for thread, sql in traced if thread == mine and "embedding" in sql.lower()
        ],
        "ours_elsewhere": sum("embedding" in sql for thread, sql in traced if thread != mine),
    }
    db.close()
print(json.dumps(result))
