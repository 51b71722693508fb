"""The whole way on every release and Python, and the document that says how it went.

    python tests/compatibility/matrix.py --write --own-tests GIT_DIR
    python tests/compatibility/matrix.py [--python EXE …] [--only NAME …] [--cells FILE]

A cell is one release of Hermes under one Python: it writes a history, the patch is applied, the
history is embedded by a server, found in the words it has and through its vectors, shown by
``status``, and reverted, after which the database is what it was. Without ``--python`` every
Python on the PATH takes part. ``--cells`` keeps results, so that a run goes on where another
stopped. ``--own-tests`` takes what own_tests.py takes, or the file that it wrote. ``--write``
makes docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import own_tests
from document import page

import targets
from hermes_patch import deploy
from stub_server import StubServer

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "scripts"
RELEASES = sorted((*targets.CI, *targets.MATRIX), key=lambda target: target.schema)
PLUGIN = "plugins/hermes_patch"
BY_WORDS, BY_VECTOR = "docker port", "feed twice and keep warm for dinner"
NAMES = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")
_COMMAND = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"


def has_extensions(python: Path) -> bool:
    """Tell whether this Python's sqlite3 loads extensions."""
    code = "import sqlite3; print(hasattr(sqlite3.Connection, 'enable_load_extension'))"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return told.stdout.strip() == "True"


def interpreters() -> list[Path]:
    """Return one Python of each version on the PATH, with and without extensions."""
    found = dict[tuple[str, bool], Path]()
    for folder in os.get_exec_path():
        for name in NAMES:
            python = Path(folder) / name
            if not os.access(python, os.X_OK):
                continue
            try:
                version = targets.version_of(python)
            except subprocess.CalledProcessError:  # the name leads to no installed Python
                continue
            if version >= "3.11":
                found.setdefault((version, has_extensions(python)), python)
    return [found[key] for key in sorted(found)]


def cell(target: targets.Target, python: Path, work: Path) -> dict[str, Any]:
    """Go the whole way in *work* and return what was seen; raises what goes wrong."""
    hermes = targets.provide(target, python)
    home = work / "home"
    home.mkdir()
    with StubServer() as server:
        (home / "config.yaml").write_text(server.config(minSimilarity=0.2, queryBudget=5.0))
        hermes.run(SCRIPTS / "history.py", home=home)
        _ask(hermes, home)  # at its first start Hermes adds to the database
        before = _dump(home)
        deploy.apply(home, hermes_python=hermes.python)
        _command(hermes, home, "backfill")
        told = _ask(hermes, home)
        shown = _command(hermes, home, "status", "--hermes-python", str(hermes.python))
        deploy.revert(home, purge=True, hermes_python=hermes.python)
    words, meaning = (json.loads(answer)["results"] for answer in told["answers"])
    assert told["vectors"] == 10, f"{told['vectors']} vectors of 10"
    assert words[0]["session_id"] == "docker", words
    assert words[0]["search_type"] in ("keyword", "both"), words
    assert meaning[0]["session_id"] == "bread", meaning
    assert meaning[0]["search_type"] in ("vector", "both"), meaning
    assert "plain language" in told["description"], told["description"]
    assert _dump(home) == before, "the database is not what it was before apply"
    return {
        "capabilities": told["status"]["capabilities"],
        "refusals": told["status"]["refusals"],
        "tier": shown["database"]["tier"],
    }


def _ask(hermes: targets.Installed, home: Path) -> Any:
    applied = (home / PLUGIN).exists()
    given = {"queries": [BY_WORDS, BY_VECTOR], "count": applied}
    return hermes.run_json(SCRIPTS / "ask.py", json.dumps(given), home=home)


def _command(hermes: targets.Installed, home: Path, *words: str) -> Any:
    package = {"PYTHONPATH": str(home / PLUGIN)}
    options = ("--hermes-home", str(home), "--json")
    done = hermes.run(_COMMAND, *words, *options, home=home, env=package, check=False)
    return json.loads(done.stdout)


def _dump(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "state.db")) as conn:
        return list(conn.iterdump())


def measured(target: targets.Target, python: Path) -> dict[str, Any]:
    """Return the result of a cell, ``problem`` "" where all went well."""
    started, found, problem = time.monotonic(), dict[str, Any](), ""
    try:
        with tempfile.TemporaryDirectory(prefix="matrix-") as work:
            found = cell(target, python, Path(work))
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
    return {
        "release": target.name.removeprefix("hermes-"),
        "requirement": target.requirement,
        "schema": target.schema,
        "python": targets.version_of(python),
        "extensions": has_extensions(python),
        "problem": problem,
        **found,
        "seconds": round(time.monotonic() - started),
    }


def run(pythons: list[Path], only: list[str], kept: Path | None) -> list[dict[str, Any]]:
    """Return the results of all cells, those in *kept* as they are unless they failed."""
    cells = json.loads(kept.read_text("utf-8")) if kept and kept.exists() else []
    cells = [one for one in cells if not one["problem"]]
    for python in pythons:
        for target in RELEASES:
            here = (target.name.removeprefix("hermes-"), targets.version_of(python))
            if here in {(one["release"], one["python"]) for one in cells}:
                continue
            if only and here[0] not in only:
                continue
            cells.append(measured(target, python))
            print(f"{' on '.join(here)}: {cells[-1]['problem'] or 'ok'}", file=sys.stderr)
            if kept:
                kept.write_text(json.dumps(cells, indent=1), encoding="utf-8")
    return cells


def own(place: Path | None) -> list[dict[str, Any]]:
    """Return what own_tests.py found, or finds now when *place* is a repository."""
    if place is None:
        return []
    if place.is_dir():
        return own_tests.all_trees(place)
    return list(json.loads(place.read_text("utf-8")))


def main() -> int:
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    top.add_argument("--python", nargs="+", type=Path, default=None)
    top.add_argument("--only", nargs="+", default=[], metavar="NAME", help="such as 0.19.0")
    top.add_argument("--own-tests", type=Path, metavar="GIT_DIR|FILE")
    top.add_argument("--cells", type=Path, metavar="FILE", help="keeps results between runs")
    top.add_argument("--write", action="store_true", help="make docs/compatibility.md")
    args = top.parse_args()
    cells = run(args.python or interpreters(), args.only, args.cells)
    text = page(cells, own(args.own_tests))
    if args.write:
        (ROOT / "docs" / "compatibility.md").write_text(text, encoding="utf-8")
    else:
        print(text)
    return int(any(one["problem"] for one in cells))


if __name__ == "__main__":
    sys.exit(main())
