"""The code is clean to the linter and to the strict type checker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def findings(folder: Path, *command: str) -> str:
    """Return what *command*, run in *folder*, has to say; "" when it is content."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, encoding="utf-8"
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"


@pytest.fixture
def as_installed(tmp_path: Path) -> Path:
    """A folder with the package laid out as it installs: ``setup.cfg`` moves two parts in."""
    package = tmp_path / "hermes_patch"
    package.mkdir()
    parts = [*(ROOT / "hermes_patch").iterdir(), ROOT / "migrations", ROOT / "backfill"]
    for part in parts:
        if part.name != "__pycache__":
            (package / part.name).symlink_to(part)
    return tmp_path


def test_ruff_has_nothing_to_say() -> None:
    assert findings(ROOT, "ruff", "check") == ""


def test_the_package_type_checks_strictly(as_installed: Path) -> None:
    assert findings(as_installed, "mypy", "--strict", "-p", "hermes_patch") == ""
