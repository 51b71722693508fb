"""Search without end, both through SessionDB and through the tool; run inside a Hermes.

Arguments: a JSON object with ``queries``, ``log`` (a file that gets one JSON line a call),
``pause`` (seconds between two calls), ``stop`` (a file that ends it) and ``most_seconds``.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import model_tools  # noqa: F401  Hermes discovers its plugins while this is imported
import tools.session_search_tool as tool
from hermes_state import SessionDB


def main() -> None:
    given = json.loads(sys.argv[1])
    log = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**entry: object) -> None:
        os.write(log, (json.dumps(entry) + "\n").encode())

    db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
    note(ready=True)
    started = time.monotonic()
    for step in itertools.count():
        if os.path.exists(given["stop"]) or time.monotonic() > started + given["most_seconds"]:
            break
        query = given["queries"][step // 2 % len(given["queries"])]
        call = ("search_messages", "session_search")[step % 2]
        at = time.perf_counter()
        try:
            if call == "search_messages":
                found = len(db.search_messages(query=query, limit=20))
            else:
                answer = json.loads(tool.session_search(query=query, db=db, limit=3))
                if answer.get("success") is False or "error" in answer:
                    raise AssertionError(f"the tool answered: {answer.get('error')}")
                found = len(answer["results"])
        except Exception as error:
            note(call=call, error=type(error).__name__, message=str(error))
        else:
            ms = (time.perf_counter() - at) * 1000
            note(call=call, ms=round(ms, 3), found=found)
        time.sleep(given["pause"])
    db.close()
    note(ended=True)


main()
