"""Puts the catch-up job of a home where something will run it, and takes it back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ... import config
from ...errors import DeployError
from .. import config_edit, folder, hermes
from ..hermes import Found
from ..home import changing, checked
from ..report import Report, Step, dry
from . import METHODS, Job, crontab, find, hermes_cron, script, systemd

_STARTS = {
    "hermes": "Hermes's own cron runs it while `hermes gateway` runs.",
    "systemd": "systemd runs it while you are logged in, or always after `loginctl enable-linger`.",
    "crontab": "cron runs it; a key that is set in a shell only is unknown there: use .env.",
}


def install(
    home: Path,
    *,
    every: str = "1h",
    method: str | None = None,
    hermes_python: Path | None = None,
    dry_run: bool = False,
) -> Report:
    """Have one job that catches up *every* so often, run by *method* or by what is there.

    Without *method* an existing job stays where it is. Run again, it changes nothing.

    Raises:
        DeployError: nothing here can run it, or it could not be put there.
        ConfigError: the memorySearch block is wrong.
    """
    home = checked(home)
    with changing(home, dry_run=dry_run):
        if folder.read_record(folder.plugin_folder(home)) is None:
            raise DeployError(f"{home}: the plugin is not applied; run hermes-patch apply first")
        settings = config.load(home)
        if not (settings.enabled and settings.realtime):
            raise DeployError(
                f"{home}/config.yaml: new messages are not to be embedded by themselves "
                "(provider: off or realtime: false); the job would do nothing"
            )
        found = hermes.find_hermes_python(home, hermes_python)
        old = find(home)
        chosen, notes = _choose(home, found, method or _usual(old))
        notes.append(_STARTS[chosen])
        steps = _plan(home, chosen, every, old) if dry_run else _put(home, found, chosen, every)
    shown = tuple(map(dry, steps)) if dry_run else tuple(steps)
    return Report("cron install", home, shown, tuple(notes), dry_run=dry_run)


def remove(home: Path, *, hermes_python: Path | None = None, dry_run: bool = False) -> Report:
    """Take back what install made, whichever way; raises DeployError."""
    home = checked(home)
    with changing(home, dry_run=dry_run):
        steps = take_back(home, hermes_python, dry_run=dry_run)
    notes = () if steps else ("Nothing to take back: there is no catch-up job of this home.",)
    shown = tuple(map(dry, steps)) if dry_run else tuple(steps)
    return Report("cron remove", home, shown, notes, dry_run=dry_run)


def take_back(
    home: Path, hermes_python: Path | None = None, *, dry_run: bool = False
) -> list[Step]:
    """Remove the job of *home* wherever it is, and its script; returns what was there."""
    record = script.record(home)
    steps = _withdraw(home, hermes_python, METHODS, dry_run=dry_run)
    if record is not None:
        file = script.path(home)
        steps.append(Step("script", str(file), "removed"))
        if not dry_run:
            file.unlink()
            _remove_folders(record.get("made", []))
    return steps


def _withdraw(
    home: Path, hermes_python: Path | None, methods: tuple[str, ...], *, dry_run: bool = False
) -> list[Step]:
    name, steps = script.identity(home), []
    if "hermes" in methods and hermes_cron.find(home) is not None:
        steps.append(Step("job of Hermes's cron", str(hermes_cron.file(home)), "removed"))
        if not dry_run:
            hermes_cron.remove(hermes.find_hermes_python(home, hermes_python), home)
    if "systemd" in methods and systemd.timer(name).is_file():
        steps.append(Step("systemd timer", str(systemd.timer(name)), "removed"))
        if not dry_run:
            systemd.remove(name)
    if "crontab" in methods and crontab.find(name) is not None:
        steps.append(Step("line", "crontab", "removed"))
        if not dry_run:
            crontab.remove(name)
    return steps


def _usual(old: Job | None) -> str | None:
    return old.method if old is not None and old.method in METHODS else None


def _choose(home: Path, found: Found, wanted: str | None) -> tuple[str, list[str]]:
    """Return what runs the job, and sentences about that choice."""
    own = hermes_cron.probe(found, home) if wanted in (None, "hermes") else {}
    if wanted == "hermes" and not own["can"]:
        raise DeployError("this Hermes's cron runs no scripts without the model; leave --with out")
    if wanted == "crontab" and not crontab.is_usable():
        raise DeployError("there is no `crontab` on PATH; leave --with out")
    if wanted == "systemd" and not systemd.is_usable():
        raise DeployError("`systemctl --user` cannot be reached; leave --with out")
    if wanted is not None:
        silent = wanted == "hermes" and own["gateway"] is False
        return wanted, ["Its gateway does not run just now."] if silent else []
    if own["can"] and own["gateway"]:
        return "hermes", []
    if systemd.is_usable():
        return "systemd", []
    if crontab.is_usable():
        return "crontab", []
    if own["can"]:
        return "hermes", ["Its gateway does not run just now, and nothing else here runs jobs."]
    raise DeployError(
        "nothing here runs jobs: this Hermes's cron runs no scripts without the model, "
        "`systemctl --user` cannot be reached, and there is no `crontab`; have "
        "`hermes-patch catch-up` run by whatever starts jobs on this machine"
    )


def _plan(home: Path, method: str, every: str, old: Job | None) -> list[Step]:
    same = old is not None and (old.method, old.every) == (method, every) and not old.problem
    action = "unchanged" if same else "updated" if old else "created"
    return [
        Step("script", str(script.path(home)), action),
        Step(f"job ({method}, every {every})", _where(home, method), action),
    ]


def _where(home: Path, method: str) -> str:
    places = {"hermes": hermes_cron.file(home), "systemd": systemd.timer(script.identity(home))}
    return str(places.get(method, method))


def _put(home: Path, found: Found, method: str, every: str) -> list[Step]:
    """Write script and job, then take the job from elsewhere; on failure all is as it was."""
    before = script.record(home) or {}
    file = script.path(home)
    with contextlib.ExitStack() as undo:
        made = list(before.get("made", []))
        made += _make_folder(file.parent, undo)
        if method == "systemd":
            made += _make_folder(systemd.folder(), undo)
        record = {"method": method, "every": every, "made": made}
        text = script.text(record, found.source_dir)
        steps = [Step("script", str(file), _write(file, text, undo))]
        action = _PUT[method](home, found, every, undo)
        steps.append(Step(f"job ({method}, every {every})", _where(home, method), action))
        undo.pop_all()
    others = tuple(other for other in METHODS if other != method)
    return steps + _withdraw(home, found.python, others)


def _in_hermes(home: Path, found: Found, every: str, undo: contextlib.ExitStack) -> str:
    return hermes_cron.create(found, home, every)


def _in_systemd(home: Path, found: Found, every: str, undo: contextlib.ExitStack) -> str:
    name = script.identity(home)
    units = systemd.units(name, home, _command(home, found), every)
    actions = {_write(path, text, undo) for path, text in units.items()}
    systemd.enable(name)
    return next((one for one in ("created", "updated") if one in actions), "unchanged")


def _in_crontab(home: Path, found: Found, every: str, undo: contextlib.ExitStack) -> str:
    name = script.identity(home)
    line, old = crontab.line(_command(home, found), every, name), crontab.find(name)
    if old is not None and old + b"\n" == line:
        return "unchanged"
    crontab.put(line, name)
    return "created" if old is None else "updated"


_PUT: dict[str, Callable[[Path, Found, str, contextlib.ExitStack], str]] = {
    "hermes": _in_hermes,
    "systemd": _in_systemd,
    "crontab": _in_crontab,
}


def _command(home: Path, found: Found) -> list[str]:
    return [str(found.python), str(script.path(home))]


def _write(path: Path, text: str, undo: contextlib.ExitStack) -> str:
    """Write *text* where it is not there yet; returns what was done, *undo* learns the way back."""
    content = text.encode("utf-8", "surrogateescape")
    before = path.read_bytes() if path.is_file() else None
    if before == content:
        return "unchanged"
    config_edit.replace(path, content)
    if before is None:
        undo.callback(path.unlink)
        return "created"
    undo.callback(config_edit.replace, path, before)
    return "updated"


def _make_folder(path: Path, undo: contextlib.ExitStack) -> list[str]:
    """Make *path* and what is missing above it; returns what was made, the deepest first."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir()
        undo.callback(one.rmdir)
    return [str(one) for one in missing]


def _remove_folders(made: list[str]) -> None:
    for one in made:
        with contextlib.suppress(OSError):  # somebody else's file is in it
            Path(one).rmdir()
