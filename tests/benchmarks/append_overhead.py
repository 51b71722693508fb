"""What the patch adds to append_message: patched and unpatched calls, interleaved.

    python tests/benchmarks/append_overhead.py [ROUNDS]

Runs in each release of Hermes that the tests run against, in one process each, on one
database, with the real-time worker awake and its embedder answering at once. The control is
an unpatched call in the place of the patched one: what it "adds" is noise. The last column is
our wrapper around a function that does nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import targets
from hermes_patch import deploy
from stub_server import StubServer

INSIDE = """
import json, os, statistics, sys, time
from pathlib import Path
import model_tools
from hermes_state import SessionDB
import hermes_patch

rounds = int(sys.argv[1])
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
db.create_session("s", source="cli")
patched = SessionDB._execute_write
assert hermes_patch.status()["active"]
plain = patched.__wrapped__
arms = {"plain": plain, "patched": patched, "control": plain}
seconds = {name: [] for name in arms}
names = list(arms)
for n in range(rounds):
    for name in names[n % 3:] + names[:n % 3]:
        SessionDB._execute_write = arms[name]
        started = time.perf_counter()
        db.append_message("s", "user", f"message number {n} about the disk")
        seconds[name].append(time.perf_counter() - started)
empty = hermes_patch._host._waking(lambda handle: None)
alone = []
for n in range(20000):
    started = time.perf_counter()
    empty(db)
    alone.append(time.perf_counter() - started)
micro = lambda values: round(statistics.median(values) * 1e6, 1)
added = lambda name: micro([b - a for a, b in zip(seconds["plain"], seconds[name])])
print(json.dumps({"plain": micro(seconds["plain"]), "added": added("patched"),
                  "control": added("control"), "alone": micro(alone)}))
sys.stdout.flush()
os._exit(0)
"""


def main() -> None:
    rounds = sys.argv[1] if len(sys.argv) > 1 else "2000"
    print("median µs    append_message     added   control   wrapper alone")
    for target in targets.CI:
        hermes = targets.provide(target)
        with tempfile.TemporaryDirectory() as folder, StubServer() as server:
            home = Path(folder) / "home"
            home.mkdir()
            (home / "config.yaml").write_text(server.config())
            deploy.apply(home, hermes_python=hermes.python)
            result = hermes.run_json(INSIDE, rounds, home=home, timeout=600)
        shown = (result[key] for key in ("plain", "added", "control", "alone"))
        print(f"{target.name:15}" + "".join(f"{value:12}" for value in shown))


if __name__ == "__main__":
    main()
