"""How well past sessions are found: the whole product on a real Hermes, set by set.

    python tests/quality/recall.py [FOLDER] [--set NAME …] [--target hermes-0.19.0] [--limit N]

Every set (one JSON format, see the folder's README) is written through a real SessionDB,
embedded by a backfill with the embedded model, and every question is put to the real
``session_search``: by the host alone, by keywords, by vectors and by all legs fused. Homes
are kept in the cache of the tests, so that the second run only asks. Prints one line for
each set and mode: session recall at 1, 5 and 10, mean reciprocal rank, the share of questions
without any result, and the share of unanswerable questions that rightly have none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import targets
from hermes_patch import deploy

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "retrieval"
INSIDE = Path(__file__).with_name("inside.py")
MODES = ("host", "keyword", "vector", "hybrid")
BACKFILL = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"


@dataclass(frozen=True)
class Figures:
    """Shares of the questions, 0 … 1; ``quiet`` is None without unanswerable questions."""

    at_1: float
    at_5: float
    at_10: float
    mrr: float
    empty: float
    quiet: float | None

    def line(self) -> str:
        quiet = "  –" if self.quiet is None else f"{self.quiet:.2f}"
        return (
            f"R@1 {self.at_1:.2f}  R@5 {self.at_5:.2f}  R@10 {self.at_10:.2f}  "
            f"MRR {self.mrr:.2f}  empty {self.empty:.2f}  unanswerable empty {quiet}"
        )


def figures(given: Mapping[str, Any], found: Mapping[str, Sequence[str]]) -> Figures:
    """Return the figures of one mode; *found* has the sessions of every question by its id."""
    ranks = []
    for question in given["queries"]:
        sessions, gold = found[question["id"]], set(question["gold_sessions"])
        ranks.append(next((n for n, name in enumerate(sessions, 1) if name in gold), None))
    count = len(ranks)
    hopeless = [not found[question["id"]] for question in given.get("unanswerable", [])]
    return Figures(
        *(sum(rank is not None and rank <= top for rank in ranks) / count for top in (1, 5, 10)),
        mrr=sum(1 / rank for rank in ranks if rank) / count,
        empty=sum(not found[question["id"]] for question in given["queries"]) / count,
        quiet=sum(hopeless) / len(hopeless) if hopeless else None,
    )


def home_of(hermes: targets.Installed, given: Path) -> Path:
    """Return a Hermes home that holds the set, filled and embedded; made once."""
    digest = hashlib.sha256(given.read_bytes()).hexdigest()[:12]
    home = targets.cache_folder() / "quality" / f"{hermes.target.name}-{given.stem}-{digest}"
    mark = home.with_name(f"{home.name}.complete")
    if not mark.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        hermes.run(INSIDE, "fill", given, home=home)
    deploy.apply(home, hermes_python=hermes.python)
    path = {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}
    options = ("backfill", "--hermes-home", str(home), "--json")
    hermes.run(BACKFILL, *options, home=home, env=path, timeout=3600)
    mark.touch()
    return home


def measure(
    hermes: targets.Installed, path: Path, modes: Sequence[str], limit: int | None
) -> dict[str, Figures]:
    """Return the figures of one set by mode, over its first *limit* questions."""
    home = home_of(hermes, path)
    given = json.loads(path.read_text(encoding="utf-8"))
    for kind in ("queries", "unanswerable"):
        given[kind] = given.get(kind, [])[:limit]
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({kind: given[kind] for kind in ("queries", "unanswerable")}, file)
        file.flush()
        found = hermes.run_json(INSIDE, "ask", file.name, *modes, home=home, timeout=3600)
    return {mode: figures(given, found[mode]) for mode in modes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--set", action="append", dest="sets", help="name of a set; repeatable")
    parser.add_argument("--target", default="hermes-0.19.0")
    parser.add_argument("--mode", action="append", dest="modes", choices=MODES)
    parser.add_argument("--limit", type=int, help="ask only the first N questions of a set")
    args = parser.parse_args()
    known = {target.name: target for target in (*targets.CI, *targets.MATRIX)}
    if args.target not in known:
        parser.error(f"--target: one of {', '.join(known)}")
    paths = sorted(args.folder.glob("*.json"))
    chosen = [path for path in paths if not args.sets or path.stem in args.sets]
    if not chosen:
        parser.error(f"{args.folder}: no such set; found {', '.join(p.stem for p in paths)}")
    hermes = targets.provide(known[args.target])
    for path in chosen:
        for mode, result in measure(hermes, path, args.modes or MODES, args.limit).items():
            print(f"{path.stem:15} {mode:8} {result.line()}", flush=True)


if __name__ == "__main__":
    main()
