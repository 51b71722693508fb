"""One release's turn with a home: write, embed, search; run inside a Hermes.

Arguments: a JSON object with ``session``, ``texts``, ``queries``, ``words`` and ``whole``, which
is False where the database alone is enough of Hermes. Prints what is in the database afterwards.
"""

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

given = json.loads(sys.argv[1])
OURS = re.compile(r"embedding|hermes_patch")


def schema(conn):
    """Everything that is Hermes's in the database, column by column."""
    rows = conn.execute("SELECT type, name, tbl_name FROM sqlite_master").fetchall()
    theirs = sorted(tuple(row) for row in rows if not OURS.search(row[1] + row[2]))
    tables = [name for kind, name, _ in theirs if kind == "table"]
    columns = {name: sorted(r[1] for r in conn.execute(f"PRAGMA table_info({name})"))
               for name in tables}
    return [theirs, columns]


def state(db):
    conn = db._conn
    def one(sql):
        return conn.execute(sql).fetchone()[0]

    return {
        "schema_version": one("SELECT max(version) FROM schema_version"),
        "integrity": one("PRAGMA integrity_check"),
        "foreign_keys": len(conn.execute("PRAGMA foreign_key_check").fetchall()),
        "schema": schema(conn),
        "messages": one("SELECT count(*) FROM messages"),
        "keyword": {
            word: [row["session_id"] for row in db.search_messages(query=f'"{word}"', limit=50)]
            for word in given["words"]
        },
    }


def by_meaning(db, tool):
    found = {}
    for query in given["queries"]:
        answer = json.loads(tool.session_search(query=query, db=db, limit=5))
        found[query] = {r["session_id"]: r.get("search_type") for r in answer["results"]}
    return found


result = {}
with contextlib.redirect_stdout(io.StringIO()):
    if given["whole"]:
        import model_tools  # noqa: F401  Hermes discovers its plugins while this is imported
    from hermes_state import SessionDB

    ours = sys.modules.get("hermes_patch")
    db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
    db.create_session(given["session"], source="cli")
    for text in given["texts"]:
        db.append_message(given["session"], "user", text)
    if ours is not None:
        import tools.session_search_tool as tool

        engine = ours._host.engine_of(db)
        result["idle"] = ours._host.workers.of(engine).idle.wait(60)
        result["meaning"] = by_meaning(db, tool)
        result["vectors"] = db.embedding_count()
        result["inside"] = ours.status()
    result |= state(db)
    db.close()
print(json.dumps(result))
