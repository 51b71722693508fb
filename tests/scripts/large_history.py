"""Write a large history through the host's write helper; run inside a Hermes, unpatched.

Arguments: a file with one message a line as JSON, and the number of messages a session.
"""

import json
import os
import sys
from itertools import islice
from pathlib import Path

from hermes_state import SessionDB

BEGINNING = 1_780_000_000.0
AT_ONCE = 2000


def main() -> None:
    lines, in_session = Path(sys.argv[1]), int(sys.argv[2])
    db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
    with lines.open(encoding="utf-8") as file:
        texts = (json.loads(line) for line in file)
        first = 0
        while some := list(islice(texts, AT_ONCE)):
            names = range(first // in_session, (first + len(some) - 1) // in_session + 1)
            for name in names:
                db.create_session(f"s{name}", source="cli")
            db._execute_write(lambda conn, f=first, some=some: write(conn, f, some, in_session))
            first += len(some)
    db.close()


def write(conn, first: int, some: list[str], in_session: int) -> None:
    conn.executemany(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
        (
            (f"s{n // in_session}", ("user", "assistant")[n % 2], text, BEGINNING + 60.0 * n)
            for n, text in enumerate(some, first)
        ),
    )


main()
