"""Revert: takes back what applied.json says was done, and nothing else."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from ..errors import DeployError
from . import config_edit, database, folder, hermes, memory
from .config_edit import Edit
from .folder import Workplace
from .home import changing, checked
from .jobs import placing
from .report import Report, Step


def revert(home: Path, *, purge: bool, hermes_python: Path | None) -> Report:
    """See :func:`hermes_patch.deploy.revert`."""
    home = checked(home)
    notes: list[str] = []
    with changing(home):
        target = folder.plugin_folder(home)
        foreign = target.exists() and not (target / folder.APPLIED).is_file()
        if foreign:
            notes.append(f"{target} was not made by hermes-patch and was kept.")
            record = None
            path, raw = config_edit.read(home)
            edit = Edit(path, raw, raw)
        else:
            record = folder.read_record(target)
            edit = config_edit.plan_disable(home, record and record.get("config"))
        version = _host_version(home, hermes_python) if purge else None
        job = _take_job_back(home, hermes_python, notes)
        steps = job + _take_back(home, record, edit, notes, purge=purge, version=version)
        steps += memory.remove(home)
    if foreign:
        steps.insert(0, Step("plugin folder", str(target), "kept"))
    if record is None and not foreign and not any(step.action == "removed" for step in steps):
        notes.append("Nothing to take back: the plugin is not applied here.")
    if any(step.action in ("removed", "updated") for step in steps):
        notes.append("Restart Hermes where it is running.")
    if not purge and database.is_migrated(home / "state.db"):
        notes.append("What was embedded stays in state.db; `hermes-patch revert --purge` drops it.")
    return Report("revert", home, tuple(steps), tuple(notes))


def _take_job_back(home: Path, hermes_python: Path | None, notes: list[str]) -> list[Step]:
    """Remove the catch-up job; what keeps it is no reason to keep the plugin."""
    try:
        return placing.take_back(home, hermes_python)
    except DeployError as error:
        notes.append(f"The catch-up job was not removed: {error}; see `hermes-patch cron remove`.")
        return []


def _host_version(home: Path, explicit: Path | None) -> int | None:
    try:
        found = hermes.find_hermes_python(home, explicit)
    except DeployError:
        if explicit is not None:
            raise
        return None
    return hermes.host_schema_version(found.source_dir)


def _take_back(
    home: Path,
    record: dict[str, Any] | None,
    edit: Edit,
    notes: list[str],
    *,
    purge: bool,
    version: int | None,
) -> list[Step]:
    target, db = folder.plugin_folder(home), home / "state.db"
    steps: list[Step] = []
    work = Workplace(home) if record is not None else None
    try:
        with contextlib.ExitStack() as undo:
            if work is not None:
                os.rename(target, work.old)
                undo.callback(os.rename, work.old, target)
            if edit.changed:
                config_edit.write(edit)
                undo.callback(config_edit.put, edit.path, edit.after, edit.before)
            dropped: list[str] = []
            if database.is_ready(db):
                if purge:
                    dropped = database.purge(db, version)
                else:
                    database.forget_watermark(db)
            undo.pop_all()
        if work is not None and record is not None:
            steps += _remove_folder(home, work, record, notes)
        steps.append(Step("plugins.enabled", str(edit.path), edit.action))
        steps += [Step(f"table {name}", str(db), "removed") for name in dropped]
    finally:
        if work is not None:
            work.close()
    return steps


def _remove_folder(
    home: Path, work: Workplace, record: dict[str, Any], notes: list[str]
) -> list[Step]:
    target = folder.plugin_folder(home)
    try:
        kept = folder.clear(work.old, record["files"])
    finally:
        if work.old.exists():
            os.rename(work.old, target)
    steps = [Step("plugin folder", str(target), "updated" if kept else "removed")]
    for name in kept:
        steps.append(Step("a file that is not ours", str(target / name), "kept"))
        notes.append(f"{target / name} is not ours and was kept.")
    if record.get("made_plugins_folder") and not kept:
        with contextlib.suppress(OSError):
            target.parent.rmdir()
            steps.append(Step("plugins folder", str(target.parent), "removed"))
    return steps
