"""The tables of docs/quality.md: every evaluation set on the oldest and the newest Hermes.

    python tests/benchmarks/quality.py FOLDER [--only NAME] [--hermes TARGET]

FOLDER holds the sets (nooverlap-zh.json …). Made out of them are: the no-overlap questions of
one language put to the sessions of the other, and the LoCoMo questions without the speakers'
names. Vectors are kept between runs, so that only the first one is slow. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import targets

SETS = ("nooverlap-zh", "nooverlap-en", "memorybank-zh", "memorybank-en", "cmrc-zh", "locomo-en")
MODES = ("host", "keyword", "vector", "hybrid")
COLUMNS = (
    "set (questions)",
    "Hermes alone",
    "our keywords",
    "vectors",
    "fused",
    "fused against the best leg",
    "R@1",
    "MRR",
    "stay empty",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def load(folder: Path, name: str) -> dict[str, Any]:
    """Return a set as it is in *folder*."""
    data: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return data


def across(asked: dict[str, Any], searched: dict[str, Any]) -> dict[str, Any]:
    """Return the sessions of one no-overlap set with the questions of the other language."""
    old, new = asked["language"], searched["language"]
    known = {m["id"] for s in searched["sessions"] for m in s["messages"]}
    queries = []
    for query in asked["queries"]:
        gold = [g.replace(f"no-{old}-", f"no-{new}-") for g in query["gold"]]
        sessions = [g.replace(f"no-{old}-", f"no-{new}-") for g in query["gold_sessions"]]
        queries.append({**query, "gold": [g for g in gold if g in known]})
        queries[-1]["gold_sessions"] = sessions
    return {**searched, "queries": queries, "unanswerable": asked["unanswerable"]}


def without_names(data: dict[str, Any]) -> dict[str, Any]:
    """Return LoCoMo with its questions put without the speakers' names."""
    queries = [{**query, "text": query["text_noname"]} for query in data["queries"]]
    return {**data, "queries": queries}


def variants(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is measured, by its name in the table."""
    for name in SETS:
        yield name, load(folder, name)
    zh, en = load(folder, "nooverlap-zh"), load(folder, "nooverlap-en")
    yield "nooverlap, zh asks en", across(zh, en)
    yield "nooverlap, en asks zh", across(en, zh)
    yield "locomo-en without names", without_names(load(folder, "locomo-en"))


def evaluate(data: dict[str, Any], python: Path) -> dict[str, Any]:
    """Return what ``hermes-patch eval --json`` says of one set."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "set.json"
        file.write_text(json.dumps(data), encoding="utf-8")
        line = ["-m", "hermes_patch", "eval", str(file), "--json", "--hermes-python", str(python)]
        done = subprocess.run([sys.executable, *line], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def row(name: str, data: dict[str, Any]) -> str:
    """Return one line of the table."""
    (modes,), (compared,) = data["sets"].values(), data["comparisons"].values()
    best = max(("keyword", "vector"), key=lambda mode: modes[mode]["session_recall@5"])
    against = next(c for c in compared if c["mode"] == "hybrid" and c["against"] == best)
    low, high = against["interval"]
    fused = modes["hybrid"]
    quiet = "–" if fused["unanswerable_empty"] is None else f"{fused['unanswerable_empty']:.2f}"
    cells = [f"{name} ({fused['n']})", *(with_interval(modes[mode]) for mode in MODES)]
    cells.append(f"{against['difference']:+.3f} ({low:+.3f} … {high:+.3f})")
    cells += [f"{fused['session_recall@1']:.2f}", f"{fused['mrr@10']:.2f}", quiet]
    return f"| {' | '.join(cells)} |"


def with_interval(figures: dict[str, Any]) -> str:
    """Return recall@5 with its 95 % interval."""
    low, high = figures["intervals"]["session_recall@5"]
    return f"{figures['session_recall@5']:.3f} ({low:.2f}–{high:.2f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", help="a name in the table; repeatable")
    parser.add_argument("--hermes", action="append", help="by default the oldest and the newest")
    given = parser.parse_args()
    chosen = given.hermes or [targets.CI[0].name, targets.CI[-1].name]
    for target in (one for one in (*targets.CI, *targets.MATRIX) if one.name in chosen):
        installed = targets.provide(target)
        print(f"\n### {target.name}, session recall@5\n\n{HEAD}", flush=True)
        for name, data in variants(given.folder):
            if not given.only or name in given.only:
                print(row(name, evaluate(data, installed.python)), flush=True)


if __name__ == "__main__":
    main()
