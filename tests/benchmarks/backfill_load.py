"""What a backfill costs somebody who appends at the same time.

    python tests/benchmarks/backfill_load.py [--hermes NAME] [--turns N] [--seconds N] [--local]

One process of a patched Hermes appends at a steady rate; in every other turn a backfill of an
older history runs beside it. Both halves of every pair are in one output, so that noise of the
machine falls on both. The vectors come from a server that answers after 50 ms, or, with
``--local``, from the default model, which needs the processor as well.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import targets
from hermes_patch import deploy
from hermes_patch.bench.stores import Source
from soak_load import SCRIPTS, popen_backfill

DIMS = 1024
ANSWER_SECONDS = 0.05
RATE = 20.0
HISTORY = 60_000


@contextmanager
def serving() -> Iterator[str]:
    """Serve vectors out of a small stock, already encoded, and yield the base URL."""
    source = Source(DIMS)
    stock = [json.dumps([round(x, 6) for x in source.vector()]) for _ in range(64)]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            given = [given] if isinstance(given, str) else given
            time.sleep(ANSWER_SECONDS)
            data = ",".join(
                f'{{"index":{n},"embedding":{stock[zlib.crc32(text.encode()) % len(stock)]}}}'
                for n, text in enumerate(given)
            )
            body = f'{{"data":[{data}],"model":"stock"}}'.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()


def start_appender(hermes: targets.Installed, home: Path, log: Path, stop: Path) -> Any:
    given = {"session": "live", "first": 10_000_000, "seed": 7, "rate": RATE}
    given |= {"log": str(log), "stop": str(stop), "most_seconds": 3600}
    return hermes.popen(SCRIPTS / "soak_append.py", json.dumps(given), home=home)


def appended(log: Path) -> list[float]:
    """Return the milliseconds of all appends so far; one that failed ends the run."""
    entries = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert not any("error" in entry for entry in entries), entries[-3:]
    return [entry["ms"] for entry in entries if "ms" in entry]


def turn(
    hermes: targets.Installed, home: Path, log: Path, seconds: float, out: Path
) -> list[float]:
    """Return what appends take in *seconds*, beside a backfill where *out* is a file for it."""
    process = popen_backfill(hermes, home, out) if out.name else None
    time.sleep(4.0)  # of which nothing is counted: the backfill starts
    before = len(appended(log))
    time.sleep(seconds)
    found = appended(log)[before:]
    if process is not None:
        assert process.poll() is None, f"the backfill ended too soon\n{out.read_text()}"
        process.send_signal(signal.SIGINT)
        process.wait(60)
    time.sleep(2.0)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def load(hermes: targets.Installed, home: Path, turns: int, seconds: float) -> dict[str, Any]:
    """Return p50 and p99 without and with a backfill, of all turns together."""
    log, stop = home.parent / "append.log", home.parent / "stop"
    log.touch()
    appender = start_appender(hermes, home, log, stop)
    try:
        while len(appended(log)) < RATE * 5:
            assert appender.poll() is None, appender.communicate()
            time.sleep(0.5)
        alone, beside = list[float](), list[float]()
        for n in range(turns):
            alone += turn(hermes, home, log, seconds, Path())
            beside += turn(hermes, home, log, seconds, home.parent / f"backfill{n}.out")
    finally:
        stop.touch()
        appender.wait(60)
    result: dict[str, Any] = {"appends": (len(alone), len(beside))}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        first, second = percentile(alone, share), percentile(beside, share)
        result[name] = (round(first, 2), round(second, 2), round(second / first, 2))
    return result


def main() -> None:
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    top.add_argument("--hermes", nargs="*", default=["0.9.0", "0.19.0", "0.22.2"])
    top.add_argument("--turns", type=int, default=4)
    top.add_argument("--seconds", type=float, default=20)
    top.add_argument("--local", action="store_true")
    args = top.parse_args()
    print("| | appends | p50 alone | beside | × | p99 alone | beside | × |\n" + "|---" * 8 + "|")
    chosen = [t for t in targets.CI if t.name.removeprefix("hermes-") in args.hermes]
    for target in chosen:
        hermes = targets.provide(target)
        with tempfile.TemporaryDirectory(prefix="load-") as folder, serving() as url:
            home = Path(folder) / "home"
            home.mkdir()
            lines = Path(folder) / "lines"
            lines.write_text(
                "".join(f'"older message {n} of the history"\n' for n in range(HISTORY))
            )
            hermes.run(SCRIPTS / "large_history.py", lines, 50, home=home, timeout=600)
            block = {"provider": "openai", "model": "stock", "remote": {"baseUrl": url}}
            whole = {"agents": {"defaults": {"memorySearch": {} if args.local else block}}}
            (home / "config.yaml").write_text(json.dumps(whole), encoding="utf-8")
            deploy.apply(home, hermes_python=hermes.python)
            found = load(hermes, home, args.turns, args.seconds)
        p50, p99 = (" | ".join(map(str, found[name])) for name in ("p50", "p99"))
        count = " + ".join(map(str, found["appends"]))
        print(f"| {target.name} | {count} | {p50} | {p99} |", flush=True)


if __name__ == "__main__":
    main()
