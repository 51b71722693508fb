"""What a check says, and what checks look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import Settings
from ..deploy.hermes import Found

OK, WARNING, PROBLEM, SKIPPED = "ok", "warning", "problem", "skipped"


@dataclass(frozen=True)
class Check:
    """One finding in one sentence; ``remedy`` says what to do, ``fix`` does it."""

    name: str
    verdict: str
    finding: str
    remedy: str = ""
    mended: bool = False
    fix: Callable[[], object] | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the function."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "finding": self.finding,
            "remedy": self.remedy,
            "fixable": self.fix is not None,
            "mended": self.mended,
        }


@dataclass
class Patient:
    """One home under examination; what earlier checks found out is there for later ones."""

    home: Path
    hermes_python: Path | None = None
    settings: Settings | None = None
    found: Found | None = None

    @property
    def database(self) -> Path:
        """The path of state.db."""
        return self.home / "state.db"

    @property
    def folder(self) -> Path:
        """The plugin's folder."""
        return self.home / "plugins" / "hermes_patch"

    @property
    def vendor(self) -> Path:
        """The plugin's folder of packages."""
        return self.folder / "vendor"
