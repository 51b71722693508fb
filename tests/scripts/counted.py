"""Write through a SessionDB as the package does, and as Hermes does; print the host's counts."""

import json
import os
from pathlib import Path

from hermes_state import SessionDB

from hermes_patch import upstream

db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
db.create_session(session_id="s", source="cli")
merges = []
for name in ("_try_wal_checkpoint", "_try_optimize_fts", "_try_incremental_merge_fts"):
    if hasattr(db, name):
        setattr(db, name, lambda *_args: merges.append(1))
before = db._write_count
for _ in range(1200):
    upstream.write(db, lambda conn: conn.execute("UPDATE sessions SET model = 'ours'"))
ours, merged = db._write_count - before, len(merges)
db._execute_write(lambda conn: conn.execute("UPDATE sessions SET title = 'theirs'"))
row = db.get_session("s")
print(
    json.dumps(
        {
            "ours": ours,
            "merged": merged,
            "theirs": db._write_count - before,
            "written": [row["model"], row["title"]],
        }
    )
)
db.close()
