"""The load of a soak: processes on one state.db that are killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_server import SoakServer
from targets import Installed

SCRIPTS = Path(__file__).parent / "scripts"
MOODS = (("fine", 0.4), ("slow", 0.2), ("429", 0.2), ("down", 0.2))
"""What the embedding server does, and for which share of each turn."""
TURN_SECONDS = 20.0
START_SECONDS = 60.0
STOP_SECONDS = 30.0
INTERRUPT_SECONDS = 10.0
"""How long the back-filler has for the batch under way; it may be waiting for the server."""
RESTART_PAUSE = 0.5
QUERIES = (
    "docker container port",
    "系统空间不够了怎么办",
    "smart bulbs",
    '"nightly backup"',
    "磁盘清理",
    "database OR scheduler",
    "为什么服务要重启",
    "how do I bake bread",
)


@dataclass(frozen=True)
class Plan:
    """What a soak does. Times in seconds, ``rate`` in messages a second and appender."""

    seconds: float = 120.0
    kill_every: float = 15.0
    history: int = 2000
    rate: float = 25.0
    server_rate: float = 60.0
    seed: int = 1


@dataclass
class Ended:
    """How the processes of one kind ended: by our kill, or by themselves, by exit code."""

    killed: int = 0
    exits: Counter[int] = field(default_factory=Counter)
    words: str = ""
    """The last line of errors of one that ended with another code than 0."""


class Child:
    """A process that is started again whenever it ends; ``name`` is its kind."""

    def __init__(self, name: str, start: Callable[[int, Path], subprocess.Popen[str]], out: Path):
        """``start`` gets the number of the start and the file for output and errors."""
        self.name = name
        self.ended = Ended()
        self._start = start
        self._out = out
        self._starts = 0
        self._again_at = 0.0
        self._process: subprocess.Popen[str] | None = None

    def tend(self) -> None:
        """Start it where it does not run."""
        if self._process is not None and self._process.poll() is not None:
            self._bury()
        if self._process is None and time.monotonic() >= self._again_at:
            self._process = self._start(self._starts, self._out)
            self._starts += 1

    def kill(self) -> bool:
        """Kill it with SIGKILL and start it again at once; False where it had just ended."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        _kill(process)
        self.ended.killed += 1
        self._process = None
        self.tend()
        return True

    def finish(self, seconds: float) -> bool:
        """Wait until it ends by itself; after *seconds* it is killed and False returned."""
        process = self._process
        if process is None:
            return True
        try:
            process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.discard()
            return False
        self._bury()
        return True

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def discard(self) -> None:
        """Kill it for good."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)

    def _bury(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        self.ended.exits[code] += 1
        if code:
            lines = self._out.read_text("utf-8", "replace").strip().splitlines()
            self.ended.words = lines[-1] if lines else ""
        self._process = None
        self._again_at = time.monotonic() + RESTART_PAUSE


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process and all it started: each one leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass
class Outcome:
    """What a load did; ``calls`` and ``ms`` are by the name of the host's method."""

    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    ms: dict[str, list[float]] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    wal_end: int = 0
    wal_most: int = 0
    journal: str = ""


class Load:
    """Two appenders, a searcher and, where the plugin is applied, a back-filler."""

    def __init__(self, hermes: Installed, home: Path, plan: Plan, server: SoakServer | None):
        """``server`` is None for the unpatched control: no back-filler, no moods."""
        self._hermes = hermes
        self._home = home
        self._plan = plan
        self._server = server
        self._folder = home.parent / f"{home.name}-load"
        self._folder.mkdir()
        self._stop = self._folder / "stop"
        self._appenders = [self._child("appender", self._append(n), f"append{n}") for n in (0, 1)]
        self._others = [self._child("searcher", self._search, "search")]
        if server is not None:
            self._others.append(self._child("back-filler", self._backfill, "backfill"))
        self._kills = 0
        self._seen = 0

    def run(self) -> Outcome:
        """Run for the planned time and return what happened; no process outlives this."""
        outcome = Outcome()
        children = [*self._appenders, *self._others]
        try:
            self._wait_until_all_work(children)
            started = time.monotonic()
            while (now := time.monotonic() - started) < self._plan.seconds:
                self._step(now, children, outcome)
                time.sleep(0.05)
            outcome.wal_end = self._wal()
            outcome.journal = self._journal()
            outcome.seconds = time.monotonic() - started
            self._finish(outcome)
        finally:
            for child in children:
                child.discard()
        for child in children:
            total = outcome.ended.setdefault(child.name, Ended())
            total.killed += child.ended.killed
            total.exits += child.ended.exits
            total.words = total.words or child.ended.words
        self._collect(outcome)
        return outcome

    def _step(self, now: float, children: list[Child], outcome: Outcome) -> None:
        if self._server is not None:
            mood = mood_at(now, min(TURN_SECONDS, self._plan.seconds))
            if mood != self._server.mode:
                self._server.turn(mood)
        if now >= (self._kills + 1) * self._plan.kill_every:
            victims = [self._appenders[self._kills % 2]]
            victims += [child for child in self._others if child.name == "back-filler"]
            self._kills += 1
            for child in victims:
                child.kill()
        for child in children:
            child.tend()
        outcome.wal_most = max(outcome.wal_most, self._wal())

    def _finish(self, outcome: Outcome) -> None:
        """Let appenders and searcher come to their end; the back-filler is interrupted first."""
        self._stop.touch()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._others[1:]:
            child.interrupt()
            child.ended.killed += not child.finish(INTERRUPT_SECONDS)
        for child in [*self._appenders, *self._others[:1]]:
            if not child.finish(deadline - time.monotonic()):
                outcome.failures[f"{child.name}: does not end"] += 1

    def _wait_until_all_work(self, children: list[Child]) -> None:
        deadline = time.monotonic() + START_SECONDS
        logs = [self._log(name) for name in ("append0", "append1", "search")]
        while not all(log.exists() and log.stat().st_size for log in logs):
            assert time.monotonic() < deadline, f"not started; see {self._folder}"
            for child in children:
                child.tend()
            time.sleep(0.05)

    def _child(
        self, name: str, start: Callable[[int, Path], subprocess.Popen[str]], file: str
    ) -> Child:
        return Child(name, start, self._folder / f"{file}.out")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _common(self, name: str) -> dict[str, Any]:
        most = self._plan.seconds + START_SECONDS
        return {"log": str(self._log(name)), "stop": str(self._stop), "most_seconds": most}

    def _append(self, number: int) -> Callable[[int, Path], subprocess.Popen[str]]:
        def start(time_: int, out: Path) -> subprocess.Popen[str]:
            given = {
                **self._common(f"append{number}"),
                "session": f"soak-{number}-{time_}",
                "first": (1 + number * 1000 + time_) * 1_000_000,
                "rate": self._plan.rate,
                "seed": self._plan.seed,
            }
            return self._popen(out, SCRIPTS / "soak_append.py", json.dumps(given))

        return start

    def _search(self, _time: int, out: Path) -> subprocess.Popen[str]:
        given = {**self._common("search"), "queries": QUERIES, "pause": 0.2}
        return self._popen(out, SCRIPTS / "soak_search.py", json.dumps(given))

    def _backfill(self, _time: int, out: Path) -> subprocess.Popen[str]:
        return popen_backfill(self._hermes, self._home, out)

    def _popen(self, out: Path, *command: Any) -> subprocess.Popen[str]:
        return popen(self._hermes, self._home, out, {}, *command)

    def _wal(self) -> int:
        try:
            return (self._home / "state.db-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def _journal(self) -> str:
        """Return the journal mode, read by another process than this one."""
        code = (
            "import os, sqlite3; c = sqlite3.connect(os.environ['HERMES_HOME'] + '/state.db', "
            "timeout=20); print(c.execute('PRAGMA journal_mode').fetchone()[0])"
        )
        return self._hermes.run(code, home=self._home, check=False).stdout.strip()

    def _collect(self, outcome: Outcome) -> None:
        for name in ("append0", "append1", "search"):
            for entry in entries(self._log(name)):
                call = entry.get("call")
                if call is None:
                    continue
                outcome.calls[call] += 1
                if "error" in entry:
                    what = f"{call}: {entry['error']}: {entry['message']}"
                    outcome.failures[what[:160]] += 1
                    continue
                outcome.ms.setdefault(call, []).append(entry["ms"])
                if "sha" in entry:
                    outcome.written[entry["id"]] = entry["sha"]
        for name, ended in outcome.ended.items():
            if name != "back-filler":
                for code, count in ended.exits.items():
                    if code:
                        outcome.failures[f"{name}: exit {code}: {ended.words[:100]}"] += count


def mood_at(now: float, turn: float) -> str:
    """Return what the server does *now* seconds after the start."""
    place = now % turn / turn
    for mood, share in MOODS:
        if place < share:
            return mood
        place -= share
    return MOODS[-1][0]


def entries(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log; a kill may have cut the last one of a process."""
    for line in log.read_text("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def popen(
    hermes: Installed, home: Path, out: Path, env: Mapping[str, str], *command: Any
) -> subprocess.Popen[str]:
    """Start a process of Hermes that leads a process group; output and errors go to *out*."""
    environment = hermes.environment(home, env)
    with out.open("w", encoding="utf-8") as file:
        return subprocess.Popen(
            [str(hermes.python), *map(str, command)],
            env=environment,
            cwd=environment["HOME"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,
        )


def popen_backfill(
    hermes: Installed, home: Path, out: Path, *options: str
) -> subprocess.Popen[str]:
    """Start ``hermes-patch backfill`` with the code that was applied to *home*."""
    env = {"PYTHONPATH": str(home / "plugins" / "hermes_patch"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ("-m", "hermes_patch", "backfill", "--hermes-home", home, "--json", *options)
    return popen(hermes, home, out, env, *command)
