"""``hermes-patch bench``: how fast the nearest vectors are found, beside other ways to do it.

Needs no Hermes home: synthetic stores are made in a temporary folder. Every method runs in a
process of its own, under the Python that runs Hermes if one is named.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

LARGEST = 10_000_000
_UNITS = {"": 1, "k": 1000, "m": 1_000_000}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command, but for ``--hermes-python`` and ``--json``."""
    parser.add_argument(
        "--sizes",
        type=_stores,
        default=[(1000, None), (10_000, None)],
        metavar="N,…",
        help="vectors, with dimensions or without: 1k,10k,1mx384",
    )
    parser.add_argument(
        "--dims",
        type=_sizes,
        default=[896],
        metavar="N,…",
        help="dimensions of the sizes that name none: 384,768",
    )
    parser.add_argument("--queries", type=_count, default=5, metavar="N", help="of each method")
    parser.add_argument("--report", metavar="HTML", help="write a plot that a browser shows")


def _sizes(text: str) -> list[int]:
    sizes = []
    for part in text.lower().split(","):
        found = re.fullmatch(r"(\d+)([km]?)", part.strip(), re.ASCII)
        size = int(found.group(1)) * _UNITS[found.group(2)] if found else 0
        if not 1 <= size <= LARGEST:
            raise argparse.ArgumentTypeError(f"{part!r}: expected 1 … {LARGEST}, like 500 or 10k")
        sizes.append(size)
    return sizes


def _stores(text: str) -> list[tuple[int, int | None]]:
    """Return (vectors, dimensions) of each part, None where it names no dimensions."""
    found: list[tuple[int, int | None]] = []
    for part in text.split(","):
        size, times, dims = part.replace("×", "x").lower().partition("x")
        found.append((_sizes(size)[0], _sizes(dims)[0] if times else None))
    return found


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 … 1000")
    return number


def command(args: argparse.Namespace, python: Path | None) -> int:
    """Measure and print; *python* runs the methods, None for this one.

    Raises:
        HermesPatchError: the report cannot be written, or a method failed.
    """
    from ..errors import HermesPatchError
    from . import measuring

    report = Path(args.report) if args.report else None
    if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise HermesPatchError(f"--report {report}: expected a file in a folder that exists")
    sizes = [(size, dims) for size, own in args.sizes for dims in ([own] if own else args.dims)]
    data = measuring.run(sizes, args.queries, python or Path(sys.executable))
    if report is not None:
        from .plot import page

        report.write_text(page(data), encoding="utf-8")
        print(f"report: {report}", file=sys.stderr)
    print(json.dumps(data, indent=2) if args.json else "\n".join(lines(data)))
    return 0


def lines(data: dict[str, Any]) -> list[str]:
    """Return the figures as a table for a terminal."""
    result = [data["machine"], ""]
    result.append(
        f"{'vectors':>9} {'dims':>5}  {'method':20} {'codes':8} {'ms':>9} {'first':>7} "
        f"{'× guide':>8} {'× sqlite-vec':>12} {'recall@20':>9} {'MB':>5} {'child':>5}"
    )
    for row in data["rows"]:
        result.append(
            f"{row['size']:>9} {row['dims']:>5}  {row['method']:20} {row['codes'] or '':8} "
            f"{row['ms']:>9.2f} {_number(row['first_ms'], 0):>7} "
            f"{_number(row['ratio_to_guide']):>8} {_number(row['ratio_to_sqlite_vec']):>12} "
            f"{_number(row['recall_at_20'], 3):>9} {_number(row['rss_mb'], 0):>5} "
            f"{_number(row['child_mb'], 0):>5}"
        )
    for name, floor in data["floor_ms"].items():
        result.append(f"{name}: memory bandwidth alone {floor:.2f} ms")
    return [*result, *data["notes"]]


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
