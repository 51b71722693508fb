"""Into a Hermes home and out again: ``hermes-patch apply`` and ``hermes-patch revert``.

All or nothing: what an error, a full disk or a lock interrupts is put back as it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .hermes import Found, find_hermes_python
from .report import Report, Step, describe_sending

if TYPE_CHECKING:
    from .database import Migrate

__all__ = [
    "Found",
    "Report",
    "Step",
    "apply",
    "describe_sending",
    "find_hermes_python",
    "revert",
    "set_value",
]


def apply(
    home: Path,
    *,
    hermes_python: Path | None = None,
    dry_run: bool = False,
    migrate: Migrate | None = None,
    memory: bool = False,
) -> Report:
    """Put the plugin folder into *home*, enable it in config.yaml and migrate state.db.

    *hermes_python* is the Python that runs Hermes, None looks for it; *migrate* stands in
    for ``migrations.apply``. Run again, it brings everything up to date and otherwise
    changes no byte. A dry run changes none at all. *memory* adds the folder of the long-term
    memory, which later runs keep up to date.

    Raises:
        DeployError: it could not be done; *home* is as it was.
        ConfigError: the memorySearch block is wrong.
        SchemaError: a foreign table has one of our names.
    """
    from . import installing

    return installing.apply(
        home, hermes_python, dry_run=dry_run, migrate=migrate, with_memory=memory
    )


def revert(home: Path, *, purge: bool = False, hermes_python: Path | None = None) -> Report:
    """Take back what apply did to *home*; *purge* drops our tables from state.db as well.

    Raises:
        DeployError: it could not be done; *home* is as it was.
    """
    from . import removing

    return removing.revert(home, purge=purge, hermes_python=hermes_python)


def set_value(home: Path, key: str, value: float) -> Path:
    """Put *value* under *key* of our block in config.yaml; return the file's real path.

    Raises:
        DeployError: the file cannot be read, understood or written, or no edit would leave
            the rest of it as it is; says what to write by hand.
    """
    from . import config_edit

    return config_edit.set_value(home, key, value)
