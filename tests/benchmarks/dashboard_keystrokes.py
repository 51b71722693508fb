"""What typing into the dashboard's search costs, with and without the patch.

    python tests/benchmarks/dashboard_keystrokes.py [ROUNDS]

Starts the real dashboard of each release and types 20 letters, one request after the other
without a pause, beside an endpoint that needs no database. Printed are the median and the longest
milliseconds of both, over all rounds, how many texts reached the embedder's server in one round
of typing, and how long the query that rests took, which is sent then. "hanging" is a server that
takes requests and never answers.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import targets
from dashboards import Dashboard, other_requests
from hermes_patch import deploy
from hermes_patch.embedders.base import PROBE_TEXT
from stub_server import StubServer
from targets import Installed

HISTORY = Path(__file__).resolve().parents[1] / "scripts" / "history.py"
WORDS = (
    "docker port conflict",
    "sourdough looks flat",
    "new tuya bulbs paired",
    "website via ftp up",
)
BACKFILL = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"


def home_of(hermes: Installed, folder: Path, config: str | None) -> Path:
    """Return a home with a history; patched and embedded if there is a configuration."""
    home = folder / "home"
    home.mkdir()
    hermes.run(HISTORY, home=home)
    if config is not None:
        (home / "config.yaml").write_text(config)
        deploy.apply(home, hermes_python=hermes.python)
        path = {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}
        hermes.run(BACKFILL, "backfill", "--hermes-home", str(home), home=home, env=path)
    return home


def measure(dashboard: Dashboard, server: StubServer, rounds: int) -> str:
    """Type, and return one line of figures."""
    keys: list[float] = []
    others: list[float] = []
    most = 0
    for number in range(rounds):
        text = f"{WORDS[number % len(WORDS)]} {number} and more words"[:20]
        server.texts.clear()
        with other_requests(dashboard) as seconds:
            for end in range(1, len(text) + 1):
                started = time.perf_counter()
                dashboard.found(text[:end])
                keys.append(time.perf_counter() - started)
        others += seconds
        time.sleep(1.0)  # typing rests
        most = max(most, sum(sent != PROBE_TEXT for sent in server.texts))
    started = time.perf_counter()
    dashboard.found("a question in words of its own")
    rested = time.perf_counter() - started
    shown = [f"{1000 * f(part):.0f}" for part in (keys, others) for f in (statistics.median, max)]
    return (
        f"{shown[0]:>8} / {shown[1]:<8}{shown[2]:>8} / {shown[3]:<8}{most:>6}{1000 * rested:>10.0f}"
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    names = ("search", "other endpoint", "sent", "at rest")
    print("ms, median / longest".ljust(28) + "".join(name.rjust(14) for name in names))
    for target in targets.CI[1:]:
        hermes = targets.provide(target)
        for arm in ("unpatched", "local model", "server", "hanging"):
            with tempfile.TemporaryDirectory() as folder, StubServer() as server:
                config = {"unpatched": None, "local model": "{}"}.get(arm, server.config())
                home = home_of(hermes, Path(folder), config)
                server.mode = "hang" if arm == "hanging" else "fine"
                with Dashboard(hermes, home) as dashboard:
                    dashboard.found("docker")
                    time.sleep(4.0)  # whatever starts with the first search has started
                    line = measure(dashboard, server, rounds)
            print(f"{target.name + ', ' + arm:28}{line}", flush=True)


if __name__ == "__main__":
    main()
