"""Time the parts of session_search; run inside a Hermes with the plugin.

Arguments: a JSON object with ``queries``, ``warm`` (questions asked before, untimed, until codes
are made) and ``settle`` (seconds that may take). Prints milliseconds of every part, a list for
each query, and resident megabytes of this process and of its children.
"""

import json
import os
import sys
import threading
import time
import types
from collections import defaultdict
from pathlib import Path

given = json.loads(sys.argv[1])


def resident(process: object = "self") -> float:
    lines = Path(f"/proc/{process}/status").read_text("ascii", "replace").splitlines()
    return next((int(x.split()[1]) / 1024 for x in lines if x.startswith("VmRSS")), 0.0)


import model_tools  # noqa: E402, F401  Hermes discovers its plugins while this is imported
import tools.session_search_tool as tool  # noqa: E402
from hermes_state import SessionDB  # noqa: E402

import hermes_patch  # noqa: E402
from hermes_patch import engine, recall, search  # noqa: E402

assert hermes_patch.status()["active"]
before = resident()
spent: dict[str, float] = defaultdict(float)
lock = threading.Lock()


def timed(owner: object, name: str, part: str) -> None:
    original = getattr(owner, name)

    def measured(*args, **kwargs):
        started = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            with lock:
                spent[part] += (time.perf_counter() - started) * 1e3

    setattr(owner, name, measured)


def timed_keywords() -> None:
    """Time the host's own search, which our wrapper holds."""
    wrapper = SessionDB.search_messages
    box = types.SimpleNamespace(call=wrapper.__wrapped__)
    cell = next(c for c in wrapper.__closure__ if c.cell_contents is box.call)
    timed(box, "call", "keyword")
    cell.cell_contents = box.call


timed_keywords()
timed(engine.Engine, "query_vector", "embedding")
timed(search._Search, "_vector", "vector")
timed(search._Search, "_relaxed", "relaxed")
timed(search, "fuse", "fuse")
timed(recall, "describe", "describe")
timed(recall, "widen", "widen")
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
started = time.perf_counter()
tool.session_search(query=given["warm"][0], db=db, limit=5)
first = {"whole": (time.perf_counter() - started) * 1e3, **spent}
ours = hermes_patch._host.engine_of(db)
end = time.monotonic() + given["settle"]
while time.monotonic() < end:
    for query in given["warm"]:
        tool.session_search(query=query, db=db, limit=5)
    if not ours.coarse.state or ours.coarse.state.get("ready"):
        break
    time.sleep(0.5)
rows, legs = [], []
for query in given["queries"]:
    spent.clear()
    started = time.perf_counter()
    answer = json.loads(tool.session_search(query=query, db=db, limit=5))
    whole = (time.perf_counter() - started) * 1e3
    rows.append({"whole": whole, **spent, "found": len(answer["results"])})
    legs.append(answer["semantic"]["status"])
tasks = Path("/proc/self/task").iterdir()
pids = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
result = {
    "first": first,
    "rows": rows,
    "semantic": sorted(set(legs)),
    "rss_before": before,
    "rss": resident(),
    "children": [resident(pid) for pid in sorted(pids)],
    "codes": ours.coarse.state,
    "failures": [str(failure) for failure in ours.guard.failures()],
}
print(json.dumps(result))
sys.stdout.flush()
os._exit(0)
