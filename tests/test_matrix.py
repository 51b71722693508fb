"""The whole way on every release, as docs/compatibility.md has it; and that document's tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import targets

sys.path.insert(0, str(Path(__file__).parent / "compatibility"))

import document
import matrix

PYTHONS = matrix.interpreters()


@pytest.mark.matrix
@pytest.mark.parametrize("python", PYTHONS, ids=map(targets.version_of, PYTHONS))
@pytest.mark.parametrize("release", matrix.RELEASES, ids=lambda release: release.name)
def test_the_whole_way(release: targets.Target, python: Path, tmp_path: Path) -> None:
    found = matrix.cell(release, python, tmp_path)
    assert {"search", "realtime", "tool", "methods"} <= set(found["capabilities"])


def test_the_document_names_what_failed_and_what_was_not_run() -> None:
    cell = {
        "release": "0.9.0",
        "schema": 6,
        "python": "3.11.7",
        "extensions": False,
        "problem": "",
        "tier": "python",
        "capabilities": ["search"],
        "refusals": {"tool": "is not there"},
    }
    failed = {**cell, "python": "3.12.1", "problem": "AssertionError: no results"}
    other = {**cell, "release": "0.13.0"}
    more = {**other, "python": "3.12.1", "capabilities": ["search", "tool"], "refusals": {}}
    alone = {**cell, "release": "0.14.0"}
    own = {
        "tree": "0.10.0",
        "commit": "abc",
        "counts": {"unpatched": {"passed": 2}, "fine": {"passed": 1, "failure": 1}},
        "differs": {"fine": ["tests.a::b"]},
    }
    text = document.page([alone, other, more, cell, failed], [own])
    assert "| 0.9.0 | 6 | ok, python | **failed** |" in text
    assert "| 0.13.0 | 6 | ok, python | ok, python |" in text
    assert "| 0.14.0 | 6 | ok, python | not run |" in text
    assert "- 0.9.0 on Python 3.12.1: AssertionError: no results" in text
    assert "| 0.9.0 | search | tool: is not there |" in text
    assert "| 0.13.0 on Python 3.12.1 | search, tool | nothing |" in text
    assert text.index("| 0.9.0 |") < text.index("| 0.13.0 |")
    assert "| 0.10.0 (`abc`) | 2 passed | 1 passed, 1 failure | `b` |" in text
