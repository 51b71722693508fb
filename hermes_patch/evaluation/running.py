"""Runs evaluation sets on a real Hermes in a temporary home, mode by mode.

Each mode is a configuration of the product (weights; for Hermes alone ``provider: off``) and
a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import config, deploy
from ..config_keys import BLOCK
from ..deploy.hermes import Found, host_schema_version
from ..errors import HermesPatchError, HostError
from .measures import Answer
from .saved import Saved
from .sets import EvaluationSet
from .trade import Best, Swept

FLOOR = "floor"
"""The vector leg alone at every floor and opening."""
GATE = "gate"
"""The relaxed leg alone at every gate."""
THRESHOLDS = tuple(n / 100 for n in range(101))
"""The cosines and coverages at which a leg is looked at, those in use apart."""

_STEPS = Path(__file__).resolve().with_name("steps.py")
_PLUGIN = Path("plugins") / "hermes_patch"
_STEP_SECONDS = 4 * 3600.0
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PATIENCE = 60.0  # what is measured is what is found, not how fast this machine is today


@dataclass(frozen=True)
class Hit:
    """One conversation of an answer and the message it was found by, None if by none."""

    session: str
    message: str | None


@dataclass(frozen=True)
class Asked:
    """The answers of one mode by the id of the question, and the model that gave them.

    ``model`` is None for Hermes alone.
    """

    hits: dict[str, list[Hit]] = field(repr=False)
    model: str | None = None

    def answers(self) -> dict[str, Answer]:
        """Return the answers as the measures want them."""
        return {
            name: Answer(
                tuple(hit.session for hit in hits),
                tuple(hit.message or f"unknown {n}" for n, hit in enumerate(hits)),
            )
            for name, hits in self.hits.items()
        }


@dataclass(frozen=True)
class Source:
    """The memorySearch block to evaluate and the variables that it names.

    Values of variables are handed on in the environment and never written to a file.
    """

    block: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path | None, provider: str | None) -> Source:
        """Take the block of a config.yaml (with the .env beside it), or the defaults.

        Raises:
            ConfigError: the file cannot be read.
            HermesPatchError: the file is missing, or the block embeds nothing.
        """
        if path is not None and not path.is_file():
            raise HermesPatchError(f"--config {path}: there is no such file")
        found = config.block_of(config.read_yaml(path)) if path is not None else None
        if found is not None and not isinstance(found, Mapping):
            raise HermesPatchError(f"--config {path}: {BLOCK} is no mapping")
        block = {**(found or {}), **({"provider": provider} if provider else {})}
        if path is None:
            return cls(block)
        lookup = config.read_dotenv(path.parent / ".env")
        values = {name: lookup(name) for name in _VARIABLE.findall(json.dumps(block, default=str))}
        return cls(block, {name: value for name, value in values.items() if value})

    def of_mode(self, mode: str) -> dict[str, Any]:
        """Return the block of one mode."""
        weights = {"exact": 1.0, "relaxed": 1.0, "vector": 1.0} | dict(
            self.block.get("weights") or {}
        )
        patient = {**self.block, "queryBudget": _PATIENCE, "realtime": False}
        alone = {"exact": 0.0, "relaxed": 0.0, "vector": weights["vector"] or 1.0}
        if mode == "host":
            return {"provider": "off"}
        if mode == "keyword":
            return {**patient, "weights": {**weights, "vector": 0.0}}
        if mode == GATE:
            return {**patient, "weights": {**weights, "relaxed": 1.0, "vector": 0.0}}
        if mode in ("vector", FLOOR):
            return {**patient, "weights": alone}
        return {**patient, "weights": weights}


class Stage:
    """A temporary Hermes home with the plugin in it, and the processes that act on it."""

    def __init__(self, folder: Path, found: Found, source: Source) -> None:
        self.home = folder / "home"
        self.user = folder / "user"
        self.home.mkdir()
        self.user.mkdir()
        self.found = found
        self.source = source
        self._configure(source.of_mode("hybrid"))
        with _environment(source.variables):
            deploy.apply(self.home, hermes_python=found.python)
            self.settings = config.load(self.home)
        if not self.settings.enabled:
            raise HermesPatchError("the configuration says provider: off; nothing can be compared")

    @property
    def database(self) -> Path:
        """The state.db of this home."""
        return self.home / "state.db"

    def hermes(self) -> str:
        """Return name and version of Hermes."""
        return str(self._step("about", None)["hermes"])

    def prepare(self, given: EvaluationSet) -> None:
        """Put *given* into the database, embedded; from the cache as far as it is there."""
        for old in self.home.glob("state.db*"):
            old.unlink()
        schema = host_schema_version(self.found.source_dir)
        saved = Saved.of(given, self.settings, self.home / _PLUGIN / "vendor", schema)
        if not saved.restore(self.database):
            _say(f"{given.name}: writing {given.messages()} messages")
            self._step("fill", [asdict(session) for session in given.sessions])
        self._configure(self.source.of_mode("hybrid"))
        totals = self._backfill()
        if totals.get("failed"):
            _say(f"{given.name}: {totals['failed']} messages got no vector")
        elif totals.get("stored"):
            saved.keep(self.database)

    def ask(self, given: EvaluationSet, mode: str) -> Asked:
        """Put all questions of a prepared set in one mode."""
        result = self._ask(given, mode, {})
        messages = {session.id: session.messages for session in given.sessions}
        hits = {
            name: [_hit(row, messages) for row in rows] for name, rows in result["answers"].items()
        }
        return Asked(hits, result.get("model"))

    def sweep(self, given: EvaluationSet, leg: str) -> Swept:
        """Put all questions of a prepared set to one leg alone, :data:`FLOOR` or :data:`GATE`."""
        result = self._ask(given, leg, {"thresholds": THRESHOLDS})
        answers = {name: one["answers"] for name, one in result["answers"].items()}
        best = {name: Best(*one["best"]) for name, one in result["answers"].items() if one["best"]}
        return Swept(result["thresholds"], result["used"], answers, best)

    def _ask(self, given: EvaluationSet, mode: str, more: dict[str, Any]) -> dict[str, Any]:
        _say(f"{given.name}: asking, {mode}")
        self._configure(self.source.of_mode(mode))
        queries = [
            {"id": query.id, "text": query.text} for query in (*given.queries, *given.unanswerable)
        ]
        result: dict[str, Any] = self._step("ask", {"mode": mode, "queries": queries, **more})
        return result

    def _configure(self, block: dict[str, Any]) -> None:
        path = self.home / "config.yaml"
        whole = config.read_yaml(path)  # with what apply wrote into it
        inner, names = whole, BLOCK.split(".")
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
        inner[names[-1]] = block
        path.write_text(json.dumps(whole), "utf-8")

    def _backfill(self) -> dict[str, Any]:
        command = ["-m", "hermes_patch", "backfill", "--hermes-home", str(self.home), "--json"]
        totals: dict[str, Any] = json.loads(self._run(command, self.home / _PLUGIN).stdout)
        return totals

    def _step(self, name: str, given: Any) -> Any:
        """Run one step of ``steps`` in a new process of Hermes and return its outcome."""
        with tempfile.TemporaryDirectory() as folder:
            question, answer = Path(folder) / "given.json", Path(folder) / "result.json"
            question.write_text(json.dumps(given), "utf-8")
            self._run([str(_STEPS), name, str(question), str(answer)], None)
            return json.loads(answer.read_text("utf-8"))

    def _run(self, arguments: list[str], first: Path | None) -> subprocess.CompletedProcess[str]:
        paths = [first, self.found.source_dir]
        hidden = ("HERMES_", "PYTHON", "XDG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        ours = {
            "HERMES_HOME": str(self.home),
            "HERMES_DISABLE_LAZY_INSTALLS": "1",
            "HOME": str(self.user),
            "PYTHONIOENCODING": "utf-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path is not None),
        }
        # -P: a folder beside the script must not hide modules of Hermes.
        done = subprocess.run(
            [str(self.found.python), "-P", *arguments],
            env={**kept, **self.source.variables, **ours},
            cwd=self.user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if first is not None else subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=_STEP_SECONDS,
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise HostError(
                f"a step of the evaluation failed (exit {done.returncode}): "
                + " | ".join(lines[-5:])
            )
        return done


@contextmanager
def stage(found: Found, source: Source) -> Iterator[Stage]:
    """Make a Stage in a temporary folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hermes-patch-eval-") as folder:
        yield Stage(Path(folder), found, source)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _hit(row: Mapping[str, Any], messages: Mapping[str, Any]) -> Hit:
    place, session = row["place"], row["session"]
    known = messages.get(session, ())
    message = known[place].id if place is not None and place < len(known) else None
    return Hit(session, message)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
