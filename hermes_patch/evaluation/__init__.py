"""``hermes-patch eval``: how well past conversations are found, measured on sets of questions.

Needs no Hermes home: a set is written through the real SessionDB into a temporary one,
embedded by a backfill, and every question is put to the real ``session_search``.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .running import Asked, Stage
    from .sets import EvaluationSet
    from .trade import Swept

MODES = ("host", "keyword", "vector", "hybrid")
COMPARED = "session_recall@5"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command, but for ``--hermes-python`` and ``--json``."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="an evaluation set (JSON)")
    parser.add_argument(
        "--mode", action="append", choices=MODES, help="repeatable; by default all of them"
    )
    parser.add_argument("--limit", type=_positive, metavar="N", help="only N questions of each set")
    parser.add_argument("--config", metavar="YAML", help="a config.yaml that says what embeds")
    parser.add_argument(
        "--provider", choices=("local", "openai"), help="default: that of --config, or local"
    )
    parser.add_argument("--report", metavar="HTML", help="write a report that a browser shows")


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return number


def command(args: argparse.Namespace, python: Path | None) -> int:
    """Evaluate the sets and print the figures; *python* is the one that runs Hermes.

    Raises:
        HermesPatchError: a set or the configuration is wrong, or a step failed.
    """
    from .. import config
    from ..deploy import find_hermes_python
    from . import running

    given = _load(args)
    report = _report_path(args.report)
    source = running.Source.read(Path(args.config) if args.config else None, args.provider)
    # The user's home is only looked at for the Python that its last apply recorded.
    found = find_hermes_python(config.hermes_home(getattr(args, "hermes_home", None)), python)
    with running.stage(found, source) as stage:
        done = {one.name: _run(stage, one, args.mode, report is not None) for one in given}
        asked = {name: modes for name, (modes, _) in done.items()}
        swept = {name: legs for name, (_, legs) in done.items()}
        data = _results(stage, given, asked)
    if report is not None:
        from .report import page

        data["curves"] = {one.name: _curves(one, swept[one.name]) for one in given}
        report.write_text(page(data, given, asked, swept), encoding="utf-8")
        print(f"report: {report}", file=sys.stderr)
    print(json.dumps(data, ensure_ascii=False, indent=2) if args.json else "\n".join(lines(data)))
    return 0


def _load(args: argparse.Namespace) -> list[EvaluationSet]:
    from ..errors import HermesPatchError
    from .sets import load

    given = [load(Path(name), args.limit) for name in args.files]
    names = [one.name for one in given]
    for name in names:
        if names.count(name) > 1:
            raise HermesPatchError(f"two of the files hold a set named {name!r}")
    return given


def _report_path(name: str | None) -> Path | None:
    """Return where the report goes; found out before the work, not after it."""
    from ..errors import HermesPatchError

    if name is None:
        return None
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise HermesPatchError(f"--report {path}: expected a file in a folder that exists")
    return path


def _run(
    stage: Stage, given: EvaluationSet, wanted: list[str] | None, drawn: bool
) -> tuple[dict[str, Asked], dict[str, Swept]]:
    """Ask in every mode and, for a report, the legs that take part over their thresholds."""
    from .running import FLOOR, GATE

    modes = [mode for mode in MODES if not wanted or mode in wanted]
    stage.prepare(given)
    asked = {mode: stage.ask(given, mode) for mode in modes}
    used_in = {FLOOR: {"vector", "hybrid"}, GATE: {"keyword", "hybrid"}}
    legs = [leg for leg, some in used_in.items() if drawn and some & set(modes)]
    return asked, {leg: stage.sweep(given, leg) for leg in legs}


def _curves(given: EvaluationSet, legs: dict[str, Swept]) -> dict[str, list[list[float | None]]]:
    """Return about 20 points a leg: threshold, recall@5, share of hopeless questions empty."""
    from .measures import DIGITS
    from .trade import points, thinned

    return {
        leg: [
            [value if value is None else round(value, DIGITS) for value in point]
            for point in thinned(points(given, swept), swept.used)
        ]
        for leg, swept in legs.items()
    }


def _results(
    stage: Stage, given: list[EvaluationSet], asked: dict[str, dict[str, Asked]]
) -> dict[str, Any]:
    from .measures import summary

    everything = [one for modes in asked.values() for one in modes.values()]
    sets = {
        one.name: {mode: summary(one, found.answers()) for mode, found in asked[one.name].items()}
        for one in given
    }
    return {
        "ok": True,
        "hermes": stage.hermes(),
        "model": next((one.model for one in everything if one.model), None),
        "sets": sets,
        "comparisons": {one.name: _comparisons(one, asked[one.name]) for one in given},
    }


def _comparisons(given: EvaluationSet, asked: dict[str, Asked]) -> list[dict[str, Any]]:
    """Compare every two modes on session recall@5, question by question."""
    from .measures import DIGITS, comparison

    result = []
    for worse, better in combinations([mode for mode in MODES if mode in asked], 2):
        one = comparison(given, asked[better].answers(), asked[worse].answers(), COMPARED)
        result.append(
            {
                "metric": COMPARED,
                "mode": better,
                "against": worse,
                "difference": round(one.mean, DIGITS),
                "interval": [round(one.low, DIGITS), round(one.high, DIGITS)],
                "p": round(one.p, DIGITS),
            }
        )
    return result


def lines(data: dict[str, Any]) -> list[str]:
    """Return the figures as a table for a terminal."""
    width = max(len(name) for name in data["sets"])
    titles = ("R@1", "R@5 (95 %)", "R@10", "MRR (95 %)", "hit@5", "empty", "unans. empty")
    sizes = (4, 16, 4, 16, 5, 5, 12)
    head = "  ".join(title.ljust(size) for title, size in zip(titles, sizes, strict=True))
    result = [f"{data['hermes']} · {data['model'] or 'keywords only'}", ""]
    result.append(f"{'set'.ljust(width)}  {'n':>4}  mode     {head}")
    for name, modes in data["sets"].items():
        for mode, one in modes.items():
            cells = [
                _number(one, "session_recall@1"),
                _number(one, "session_recall@5", interval=True),
                _number(one, "session_recall@10"),
                _number(one, "mrr@10", interval=True),
                _number(one, "hit@5"),
                _number(one, "empty"),
                _number(one, "unanswerable_empty"),
            ]
            row = "  ".join(cell.ljust(size) for cell, size in zip(cells, sizes, strict=True))
            result.append(f"{name.ljust(width)}  {one['n']:>4}  {mode:8} {row}".rstrip())
    return result


def _number(one: dict[str, Any], metric: str, *, interval: bool = False) -> str:
    if one[metric] is None:
        return "–"
    low, high = one["intervals"][metric]
    return f"{one[metric]:.2f}" + (f" ({low:.2f}–{high:.2f})" if interval else "")
