"""Checks of the home, its configuration, the plugin, and the Hermes that loads it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import yaml

from .. import config, nearest
from .._version import __version__
from ..deploy import config_edit, describe_sending, folder, hermes
from ..errors import ConfigError, DeployError
from ..overview import has_local_model
from .check import OK, PROBLEM, SKIPPED, WARNING, Check, Patient

LEAST_FREE = 100_000_000
"""Bytes that should be free on the disk of the home."""
_APPLY = "run `hermes-patch apply`"


def home(patient: Patient) -> Iterator[Check]:
    """Existence, rights and free space."""
    path = patient.home
    if not path.is_dir():
        yield Check("home", PROBLEM, f"{path} does not exist", "name it with --hermes-home")
        return
    locked = [p for p in (path, patient.database) if p.exists() and not os.access(p, os.W_OK)]
    if locked:
        remedy = "give the user that runs Hermes the right to write there"
        yield Check("home", PROBLEM, f"{locked[0]} is read-only", remedy)
    else:
        yield Check("home", OK, str(path))
    free = shutil.disk_usage(path).free
    said = f"{free / 1e6:,.0f} MB free"
    if free < LEAST_FREE:
        yield Check("disk", PROBLEM, said, "free some space; nothing is embedded on a full disk")
    else:
        yield Check("disk", OK, said)


def configuration(patient: Patient) -> Iterator[Check]:
    """The memorySearch block, the key, and what leaves the machine."""
    try:
        settings = patient.settings = config.load(patient.home)
    except ConfigError as error:
        yield Check("config", PROBLEM, str(error), "correct config.yaml there")
        return
    if not settings.enabled:
        remedy = "set provider to local or openai to turn it on"
        yield Check("config", WARNING, "provider: off; semantic recall is turned off", remedy)
        return
    yield Check("config", OK, f"{settings.provider}, model {settings.model}")
    yield Check("privacy", OK, describe_sending(settings))
    if settings.provider == "openai":
        yield _key(patient, settings)


def _key(patient: Patient, settings: config.Settings) -> Check:
    if _literal_key(patient.home):
        remedy = "put it into .env and write apiKey: ${NAME}"
        return Check("key", WARNING, "the key stands in config.yaml itself", remedy)
    if not settings.api_key and not settings.is_loopback:
        remedy = "set memorySearch.remote.apiKey if the server wants one"
        return Check("key", WARNING, f"there is no key for {settings.host}", remedy)
    return Check(
        "key", OK, "set" if settings.api_key else "none, and the server is on this machine"
    )


def _literal_key(home: Path) -> bool:
    """Tell whether config.yaml holds a key where a variable could stand."""
    _, raw = config_edit.read(home)
    try:
        block = yaml.safe_load(raw or b"") or {}
        value = block["agents"]["defaults"]["memorySearch"]["remote"]["apiKey"]
    except (yaml.YAMLError, KeyError, TypeError):
        return False
    return isinstance(value, str) and bool(value.strip()) and "${" not in value


def installation(patient: Patient) -> Iterator[Check]:
    """The Hermes that is there, and which Python runs it."""
    try:
        found = patient.found = hermes.find_hermes_python(patient.home, patient.hermes_python)
    except DeployError as error:
        yield Check("hermes", PROBLEM, str(error), "name its Python with --hermes-python")
        return
    schema = hermes.host_schema_version(found.source_dir)
    version = f", schema {schema}" if schema else ""
    yield Check("hermes", OK, f"{found.python} (Python {found.target.python}{version})")
    takeover = hermes.takeover(found.source_dir)
    if takeover is not None:
        yield Check("hand edits", OK, takeover)


def plugin(patient: Patient) -> Iterator[Check]:
    """The plugin folder: there, whole, of this version, for this Python, enabled."""
    try:
        record = folder.read_record(patient.folder)
    except DeployError as error:
        yield Check("plugin", PROBLEM, str(error))
        return
    if record is None:
        yield Check("plugin", PROBLEM, f"not applied to {patient.home}", _APPLY)
        return
    yield _whole(patient, record)
    yield from _enabled(patient)


def _whole(patient: Patient, record: dict[str, object]) -> Check:
    files, vendor = record["files"], record.get("vendor")
    assert isinstance(files, dict)
    target = vendor.get("target") if isinstance(vendor, dict) else None
    if not folder.is_intact(patient.folder, files):
        finding = f"files in {patient.folder} are missing or changed"
        return Check("plugin", PROBLEM, finding, _APPLY + " again")
    if patient.found is not None and target and target != asdict(patient.found.target):
        finding = "its packages were made for another Python than the one that runs Hermes now"
        return Check("plugin", PROBLEM, finding, _APPLY + " again")
    settings = patient.settings
    if (
        settings is not None
        and settings.provider == "local"
        and not has_local_model(patient.vendor, settings.model)
    ):
        return Check("plugin", PROBLEM, "the local model is not in the plugin folder", _APPLY)
    if record.get("version") != __version__:
        finding = f"version {record.get('version')} is applied, this is {__version__}"
        return Check("plugin", WARNING, finding, _APPLY + " again")
    return Check("plugin", OK, f"version {__version__}, complete")


def _enabled(patient: Patient) -> Iterator[Check]:
    try:
        state = config_edit.state(patient.home)
    except DeployError as error:
        yield Check("enabled", PROBLEM, str(error))
        return
    asks = patient.found is None or hermes.has_allow_list(patient.found.source_dir)
    if state.isolated:
        remedy = "set plugins.isolation to in_process"
        yield Check("enabled", PROBLEM, "plugins.isolation is host: Hermes keeps us out", remedy)
    elif state.disabled or (asks and not state.enabled):
        yield Check("enabled", PROBLEM, "config.yaml does not enable hermes_patch", _APPLY)
    else:
        yield Check("enabled", OK, "Hermes loads the plugin")


def copies(patient: Patient) -> Iterator[Check]:
    """Other copies of us, of which only one can be in use."""
    others = [
        path
        for path in sorted((patient.home / "plugins").glob("*"))
        if path != patient.folder and (path / "hermes_patch" / "host.py").is_file()
    ]
    if others:
        remedy = f"move {others[0]} away; which one Hermes loads first is left to chance"
        yield Check("copies", PROBLEM, f"another copy of hermes-patch: {others[0]}", remedy)
    elif patient.found is not None and _importable(patient.found.python):
        remedy = "uninstall it there; the plugin folder is the one that `apply` keeps up to date"
        finding = f"hermes_patch is installed beside Hermes too ({patient.found.python})"
        yield Check("copies", WARNING, finding, remedy)
    else:
        yield Check("copies", OK, "no other copy of hermes-patch")


def _importable(python: Path) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('hermes_patch') is None)"
    line = [str(python), "-I", "-c", code]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    return done.returncode == 0


def extension(patient: Patient) -> Iterator[Check]:
    """Whether sqlite-vec can be loaded where searches run."""
    settings, found = patient.settings, patient.found
    if settings is not None and settings.accelerate == "false":
        yield Check("search", OK, "pure Python, as accelerate: false asks for")
        return
    library = nearest.find_library(patient.vendor)
    if found is None:
        yield Check("search", SKIPPED, "no Hermes, so nothing to ask about extensions")
    elif library is None:
        yield Check(
            "search", WARNING, "pure Python: sqlite-vec is not in the plugin folder", _APPLY
        )
    elif hermes.loads_extension(found.python, library):
        yield Check("search", OK, "sqlite-vec")
    else:
        finding = "pure Python: Hermes's Python does not load SQLite extensions"
        remedy = "nothing has to be done; a large history is searched faster with one that does"
        yield Check("search", WARNING, finding, remedy)


CHECKS = (home, configuration, installation, plugin, copies, extension)
