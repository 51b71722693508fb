"""Every tier gives what exact cosine gives, on generated stores that change between searches.

Ties, equal and nearly equal vectors, chunks, zero, NaN and Inf rows, rows of another length,
other spaces, filters, deleted rows, rows with ids of deleted ones, codes that lag behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_patch import nearest
from test_nearest import python_with_extensions

SCRIPT = Path(__file__).parent / "scripts" / "nearest_tiers.py"
ROOT = Path(nearest.__file__).parent.parent


def searched(folder: Path, python: str, first: int, last: int) -> dict[str, Any]:
    library = nearest.find_library()
    assert library is not None
    folder.mkdir()
    done = subprocess.run(
        [python, str(SCRIPT), str(folder), str(first), str(last), library],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check(folder: Path, first: int, last: int) -> None:
    here = searched(folder / "here", sys.executable, first, last)
    python = python_with_extensions()
    assert here["wrong"] is None
    expected = 10 * (last - first)
    tiers = {"scan, python", "columns, python", "int8, python"}
    if python is not None and python != sys.executable:
        there = searched(folder / "there", python, first, last)
        assert there["wrong"] is None
        tiers |= {"scan, sqlite-vec", "columns, sqlite-vec", "distance, sqlite-vec"}
        here["answers"] |= there["answers"]
    assert {name: here["answers"].get(name) for name in tiers} == dict.fromkeys(tiers, expected)


def test_all_tiers_agree_on_200_stores(tmp_path: Path) -> None:
    check(tmp_path, 0, 200)


@pytest.mark.matrix
def test_all_tiers_agree_on_2000_stores(tmp_path: Path) -> None:
    check(tmp_path, 0, 2000)


@pytest.mark.parametrize(
    ("module", "broken", "by"),
    [
        ("codes.py", "(rounding + reading) + SLACK", "0.0 - rounding"),  # of the columns
        ("int8.py", "_lengths(np, x - whole * step[:, None])", "0 * step"),
    ],
)
def test_a_bound_that_is_too_small_is_noticed(
    tmp_path: Path, module: str, broken: str, by: str
) -> None:
    """The stores are hard enough: without its bound a tier gives a wrong answer."""
    package = tmp_path / "hermes_patch"
    subprocess.run(["cp", "-r", str(ROOT / "hermes_patch"), str(package)], check=True)
    subprocess.run(["cp", "-r", str(ROOT / "migrations"), str(tmp_path)], check=True)
    codes = package / "child" / module
    text = codes.read_text(encoding="utf-8")
    assert broken in text
    codes.write_text(text.replace(broken, by), encoding="utf-8")
    (tmp_path / "stores").mkdir()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "stores"), "0", "150", "/nowhere"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    wrong = done.returncode != 0 or json.loads(done.stdout)["wrong"] is not None
    assert wrong
