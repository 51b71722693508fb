"""What the patch adds to append_message: patched and unpatched calls in interleaved pairs.

    python tests/benchmarks/append_overhead.py [PAIRS]

Runs in each release of Hermes that the tests run against, in one process each, on one
database, with the real-time worker awake and its embedder answering at once.
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

pairs = int(sys.argv[1])
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
db.create_session("s", source="cli")
patched = SessionDB._execute_write
assert hermes_patch.status()["active"]
plain = patched.__wrapped__
seconds = {plain: [], patched: []}
for n in range(pairs):
    order = [plain, patched] if n % 2 else [patched, plain]
    for helper in order:
        SessionDB._execute_write = helper
        started = time.perf_counter()
        db.append_message("s", "user", f"message number {n} about the disk")
        seconds[helper].append(time.perf_counter() - started)
added = [b - a for a, b in zip(seconds[plain], seconds[patched])]
micro = lambda values: round(statistics.median(values) * 1e6, 1)
print(json.dumps({"plain": micro(seconds[plain]), "patched": micro(seconds[patched]),
                  "added": micro(added)}))
sys.stdout.flush()
os._exit(0)
"""


def main() -> None:
    pairs = sys.argv[1] if len(sys.argv) > 1 else "2000"
    print("median of append_message, µs: unpatched, patched, median of the paired differences")
    for target in targets.CI:
        hermes = targets.provide(target)
        with tempfile.TemporaryDirectory() as folder, StubServer() as server:
            home = Path(folder) / "home"
            home.mkdir()
            (home / "config.yaml").write_text(server.config())
            deploy.apply(home, hermes_python=hermes.python)
            result = hermes.run_json(INSIDE, pairs, home=home, timeout=600)
        print(f"{target.name:15} {result['plain']:9} {result['patched']:9} {result['added']:7}")


if __name__ == "__main__":
    main()
