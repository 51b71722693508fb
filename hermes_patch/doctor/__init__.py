"""``hermes-patch doctor``: checks everything recall depends on; ``--fix`` mends what is safe.

Only rows and tables of ours are ever mended; Hermes's rows, its files and config.yaml are
looked at and left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import HermesPatchError
from ..guard import explain
from . import database, places, server
from .check import OK, PROBLEM, Check, Patient

__all__ = ["Check", "Report", "run"]

Checking = Callable[[Patient], Iterable[Check]]


@dataclass(frozen=True)
class Report:
    """All findings on one home."""

    home: Path
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """False when at least one check found a problem; warnings do not count."""
        return all(check.verdict != PROBLEM for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return everything in types that ``json.dumps`` takes."""
        return {
            "healthy": self.healthy,
            "home": str(self.home),
            "checks": [check.to_json() for check in self.checks],
        }

    def lines(self) -> list[str]:
        """Return the report for a terminal: a line a check, its remedy below it."""
        lines = []
        for check in self.checks:
            verdict = "mended" if check.mended else check.verdict
            lines.append(f"{verdict:<8} {check.name:<12} {check.finding}")
            if check.remedy:
                fixable = " (or `hermes-patch doctor --fix`)" if check.fix else ""
                lines.append(f"{'':<21} → {check.remedy}{fixable}")
        return [*lines, "", self._summary()]

    def _summary(self) -> str:
        counts: dict[str, int] = {}
        for check in self.checks:
            counts[check.verdict] = counts.get(check.verdict, 0) + 1
        state = "Healthy" if self.healthy else "Unhealthy"
        return f"{state}: " + ", ".join(f"{count} {name}" for name, count in counts.items())


def run(home: Path, *, fix: bool = False, hermes_python: Path | None = None) -> Report:
    """Examine *home*; with *fix*, mend what can be mended and look again."""
    patient = Patient(home, hermes_python)
    if not home.is_dir():
        return Report(home, tuple(places.home(patient)))
    checks: list[Check] = []
    for checking in (*places.CHECKS, *database.CHECKS, *server.CHECKS):
        checks += _examined(checking, patient, fix)
    return Report(home, tuple(checks))


def _examined(checking: Checking, patient: Patient, fix: bool) -> Iterator[Check]:
    found = list(_safely(checking, patient))
    sick = [check for check in found if check.fix is not None]
    if not fix or not sick:
        yield from found
        return
    failed = _mend(sick)
    names = {check.name for check in sick}
    for check in _safely(checking, patient):
        if check.name in failed and check.verdict != OK:
            yield replace(check, remedy=f"could not be mended: {failed[check.name]}", fix=None)
        else:
            yield replace(check, mended=check.name in names and check.verdict == OK)


def _mend(sick: Iterable[Check]) -> dict[str, str]:
    """Mend each that can be mended; return what went wrong by the name of the check."""
    failed: dict[str, str] = {}
    for check in sick:
        assert check.fix is not None
        try:
            check.fix()
        except Exception as error:
            failed[check.name] = str(error) if isinstance(error, OSError) else explain(error)
    return failed


def _safely(checking: Checking, patient: Patient) -> Iterator[Check]:
    """Turn a check that breaks into a finding: one broken check must not hide the others."""
    try:
        yield from checking(patient)
    except Exception as error:
        name = getattr(checking, "__name__", "check")
        text = str(error) if isinstance(error, HermesPatchError) else type(error).__name__
        yield Check(name, PROBLEM, f"the check itself failed: {text}", "report this as a bug")
