"""``hermes-patch demo``: a sample history in a real Hermes, searched without and with us.

Everything happens in a temporary Hermes home; the Hermes is the one that this Python has.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import config
from .errors import DeployError, HostError

_HERE = Path(__file__).resolve().parent
_STEPS = _HERE / "demo_steps.py"
_HISTORY = _HERE / "demo_history.yaml"
_SHOWN = 3
_STEP_SECONDS = 900.0


@dataclass(frozen=True)
class Found:
    """One conversation that a search returned."""

    session_id: str
    title: str
    similarity: float | None


@dataclass(frozen=True)
class Outcome:
    """One question and what was found, best first, by keywords alone and with the patch.

    ``expected`` is the id of the conversation that answers it, None if there is none.
    """

    query: str
    expected: str | None
    keyword: list[Found]
    fused: list[Found]

    @property
    def sides(self) -> tuple[list[Found], list[Found]]:
        """What was found without and with the patch."""
        return self.keyword, self.fused

    @property
    def ok(self) -> bool:
        """The right conversation is among the first three, or rightly nothing was found."""
        if self.expected is None:
            return not self.fused
        place = rank(self.fused, self.expected)
        return place is not None and place <= _SHOWN

    def to_json(self) -> dict[str, Any]:
        """Return the outcome with ranks from 1, None where the conversation was not found."""
        hit = next((found for found in self.fused if found.session_id == self.expected), None)
        return {
            "query": self.query,
            "expected": self.expected,
            "keyword_rank": rank(self.keyword, self.expected),
            "fused_rank": rank(self.fused, self.expected),
            "similarity": hit.similarity if hit else None,
            "ok": self.ok,
        }


@dataclass(frozen=True)
class Report:
    """The whole demonstration."""

    hermes: str
    model: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every question was answered as expected."""
        return all(outcome.ok for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "ok": self.ok,
            "hermes": self.hermes,
            "model": self.model,
            "queries": [outcome.to_json() for outcome in self.outcomes],
        }


def rank(found: list[Found], session_id: str | None) -> int | None:
    """Return the place of *session_id* in *found*, from 1, or None."""
    ids = [one.session_id for one in found]
    return ids.index(session_id) + 1 if session_id in ids else None


def run(*, as_json: bool = False, keep: Path | None = None) -> int:
    """Show the difference on a sample history; return 0 if every expectation held, else 1.

    *keep* names a new or empty folder that becomes the Hermes home and stays.

    Raises:
        HostError: this Python has no Hermes, or it failed.
        DeployError: *keep* is not empty, or the patch could not be applied.
    """
    hermes = installed_hermes()
    with _home(keep) as home:
        report = demonstrate(Stage(home), hermes)
    if as_json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    else:
        _print(report)
    if keep is not None:
        _say(f"the sample home is in {keep}")
    return 0 if report.ok else 1


def installed_hermes() -> str:
    """Return name and version of the Hermes that this Python has; raises HostError."""
    if importlib.util.find_spec("hermes_state") is None:
        raise HostError(
            f"{sys.executable} has no Hermes to show this on; "
            "install one beside it with: pip install 'hermes-patch[demo]'"
        )
    names = importlib.metadata.packages_distributions().get("hermes_state", [])
    return f"{names[0]} {importlib.metadata.version(names[0])}" if names else "Hermes"


@contextmanager
def _home(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="hermes-patch-demo-") as folder:
            home = Path(folder) / "home"
            home.mkdir()
            yield home
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise DeployError(f"{keep}: expected a new or an empty folder for the sample home")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


class Stage:
    """A Hermes home and the processes that act on it."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def step(self, name: str, given: Any) -> Any:
        """Run one step of ``demo_steps`` in a new process of Hermes and return its outcome."""
        with tempfile.TemporaryDirectory() as folder:
            question, answer = Path(folder) / "given.json", Path(folder) / "result.json"
            question.write_text(json.dumps(given), "utf-8")
            # -I: no folder of ours on the path, whose modules would hide those of Hermes.
            self._run(["-I", str(_STEPS), name, str(question), str(answer)], folder)
            return json.loads(answer.read_text("utf-8"))

    def command(self, *words: str) -> None:
        """Run one command of hermes-patch on this home."""
        with tempfile.TemporaryDirectory() as folder:
            self._run(["-m", "hermes_patch", *words, "--hermes-home", str(self.home)], folder)

    def _run(self, arguments: list[str], folder: str) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HERMES_")}
        ours = {
            "HERMES_HOME": str(self.home),
            "HERMES_DISABLE_LAZY_INSTALLS": "1",
            "HOME": folder,
            "PYTHONIOENCODING": "utf-8",
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**kept, **ours},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_STEP_SECONDS,
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise HostError(
                f"a step of the demonstration failed (exit {done.returncode}): "
                + " | ".join(lines[-5:])
            )


def read_history() -> dict[str, Any]:
    """Return the sample history: ``sessions`` and ``queries``."""
    history: dict[str, Any] = config.read_yaml(_HISTORY)
    return history


def demonstrate(stage: Stage, hermes: str) -> Report:
    """Go through all the steps on an empty home and return what came of them."""
    from . import deploy

    history = read_history()
    titles = {session["id"]: session["title"] for session in history["sessions"]}
    questions = [query["text"] for query in history["queries"]]
    _say(f"{hermes}: writing {len(titles)} conversations")
    stage.step("build", history["sessions"])
    _say("asking by keywords alone")
    before = stage.step("ask", questions)
    _say("applying the patch")
    deploy.apply(stage.home, hermes_python=Path(sys.executable))
    _say("embedding the history")
    stage.command("backfill", "--json")
    _say("asking again")
    after = stage.step("ask", questions)
    outcomes = [
        Outcome(query["text"], query["expected"], found(old, titles), found(new, titles))
        for query, old, new in zip(history["queries"], before, after, strict=True)
    ]
    return Report(hermes, _model(stage.home, after), outcomes)


def found(answer: dict[str, Any], titles: dict[str, str]) -> list[Found]:
    """Return the conversations in *answer*, the JSON of session_search, best first."""
    return [
        Found(
            session_id=str(row.get("session_id")),
            title=titles.get(str(row.get("session_id")), "?"),
            similarity=row.get("similarity"),
        )
        for row in answer.get("results", [])
    ]


def _model(home: Path, answers: list[dict[str, Any]]) -> str:
    named = [answer.get("semantic", {}).get("model") for answer in answers]
    return next((str(name) for name in named if name), config.load(home).model)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(width=min(100, max(console.width, 60)), show_lines=True)
    for title, ratio in (("Question", 5), ("Keywords alone", 4), ("With hermes-patch", 6)):
        table.add_column(title, ratio=ratio, overflow="fold")
    table.add_column("", width=6)
    for outcome in report.outcomes:
        verdict = Text("ok", "green") if outcome.ok else Text("FAILED", "bold red")
        left, right = (Text("\n").join(_lines(outcome, side)) for side in outcome.sides)
        table.add_row(Text(outcome.query), left, right, verdict)
    console.print(table)
    good = sum(outcome.ok for outcome in report.outcomes)
    console.print(
        f"{good} of {len(report.outcomes)} as expected  ·  {report.hermes}  ·  {report.model}",
        highlight=False,
    )


def _lines(outcome: Outcome, side: list[Found]) -> list[Any]:
    from rich.text import Text

    if not side:
        return [Text("nothing", "dim")]
    lines = []
    for place, one in enumerate(side[:_SHOWN], 1):
        right = one.session_id == outcome.expected
        number = f"  {one.similarity:.2f}" if one.similarity is not None else ""
        lines.append(Text(f"{place}. {one.title}{number}", "bold green" if right else ""))
    return lines
