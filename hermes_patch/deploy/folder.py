"""The plugin folder: what belongs in it, built aside and swapped in by renames.

Everything is made below ``.hermes_patch.tmp-…`` first, deep enough that Hermes, which looks
two levels down for a plugin.yaml, never takes a half-made folder for a plugin. Killed at
any moment, at worst that folder is left; the next run puts back what lies in it, removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import DeployError

NAME = "hermes_patch"
APPLIED = "applied.json"
FORMAT = 1
_TEMPORARY = ".hermes_patch.tmp-"
_ROOMS = ("hermes_patch", "hermes_patch.migrations", "hermes_patch.backfill")
_LEFT_OUT = {"__pycache__", "tests"}
_BINARY = (".so", ".pyd", ".dylib", ".dll", ".pyc")
_MANIFEST = f"""\
name: {NAME}
version: "{__version__}"
description: "Semantic recall: finds past conversations by meaning."
author: hermes-patch
kind: standalone
"""

Files = dict[str, "Path | bytes"]


def plugin_folder(home: Path) -> Path:
    """Return where the plugin lives in *home*."""
    return home / "plugins" / NAME


def package_files() -> Files:
    """Return plugin.yaml, the shim and our package, wherever it is installed.

    Raises:
        DeployError: a part of the package is not on disk as plain files.
    """
    files: Files = {"plugin.yaml": _MANIFEST.encode("ascii")}
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        places = list(spec.submodule_search_locations or ()) if spec else []
        root = Path(places[0]) if places else Path(room)
        if not root.is_dir():
            raise DeployError(f"{room}: its files are not at {root}; install hermes-patch again")
        for name, path in _sources(root):
            files[f"{room.replace('.', '/')}/{name}"] = path
    files["__init__.py"] = Path(__file__).with_name("shim.py").read_bytes()
    return files


def _sources(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(one for one in folders if one not in _LEFT_OUT and one[0] != ".")
        for name in sorted(names):
            if name[0] != "." and not name.endswith(_BINARY):
                path = Path(folder, name)
                yield path.relative_to(root).as_posix(), path


def digest(content: Path | bytes) -> str:
    """Return the sha256 of a file or of bytes, in hex."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return applied.json of *folder*, None when there is no folder at all.

    Raises:
        DeployError: the folder is not ours, or its record cannot be understood.
    """
    if not folder.exists() and not folder.is_symlink():
        return None
    path = folder / APPLIED
    if folder.is_symlink() or not path.is_file():
        raise DeployError(
            f"{folder}: exists, but hermes-patch did not make it (no {APPLIED}); "
            "move it away and run this again"
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT or not isinstance(record["files"], dict):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise DeployError(
            f"{path}: not readable by version {__version__}; if no newer hermes-patch made it, "
            f"delete {folder} and run apply again"
        ) from None
    return dict(record)


def is_intact(folder: Path, files: Mapping[str, str]) -> bool:
    """True when all *files* (path: sha256) lie in *folder* as recorded."""
    try:
        return all(digest(folder / name) == wanted for name, wanted in files.items())
    except OSError:
        return False


def strangers(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return the paths in *folder* that we did not make, byte code of ours aside."""
    found = []
    for place, folders, names in os.walk(folder):
        linked = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in [*names, *linked]:
            path = Path(place, name)
            byte_code = path.parent.name == "__pycache__" and path.suffix == ".pyc"
            inside = path.relative_to(folder).as_posix()
            if inside not in files and inside != APPLIED and not byte_code:
                found.append(inside)
    return sorted(found)


class Workplace:
    """A folder on the file system of plugins/, invisible to Hermes, removed at the end."""

    def __init__(self, home: Path) -> None:
        plugins = home / "plugins"
        apart = plugins.exists() and plugins.stat().st_dev != home.stat().st_dev
        self._top = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=plugins if apart else home))
        self.path = self._top / "a" / "b"
        self.path.mkdir(parents=True)
        self.new = self.path / "new"
        self.old = self.path / "old"

    def close(self) -> None:
        """Remove it and all that is in it."""
        shutil.rmtree(self._top, ignore_errors=True)


def recover(home: Path) -> None:
    """Put back and clear away what a killed run left."""
    folder = plugin_folder(home)
    for place in (home, home / "plugins"):
        for left in sorted(place.glob(f"{_TEMPORARY}*")):
            old = left / "a" / "b" / "old"
            if old.is_dir() and not folder.exists():
                folder.parent.mkdir(exist_ok=True)
                os.rename(old, folder)
            shutil.rmtree(left, ignore_errors=True)


def build(files: Mapping[str, Path | bytes], into: Path) -> None:
    """Write *files* below *into*; those in vendor/ share their bytes with the source."""
    for name, content in files.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif not (name.startswith("vendor/") and _linked(content, path)):
            shutil.copy2(content, path)


def _linked(source: Path, path: Path) -> bool:
    try:
        os.link(os.path.realpath(source), path)
    except OSError:
        return False
    return True


def carry(folder: Path, names: list[str], into: Path) -> None:
    """Copy the files *names* of *folder*, which are somebody else's, into the new folder."""
    for name in names:
        target = into / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, target, follow_symlinks=False)


def swap(work: Workplace, folder: Path, undo: contextlib.ExitStack) -> None:
    """Put work.new where *folder* is; *undo* learns how to put the old one back."""
    if not folder.parent.exists():
        folder.parent.mkdir()
        undo.callback(folder.parent.rmdir)
    if folder.exists():
        os.rename(folder, work.old)
        undo.callback(os.rename, work.old, folder)
    os.rename(work.new, folder)
    undo.callback(os.rename, folder, work.new)


def clear(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Delete what we made in *folder* and return the paths that stay, which are not ours.

    The record goes last, so that a killed run can be run again.
    """
    stay = strangers(folder, files)
    for name in (*files, APPLIED):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    for place, _, names in os.walk(folder, topdown=False):
        if os.path.basename(place) == "__pycache__":
            for name in names:
                if name.endswith(".pyc"):
                    os.unlink(os.path.join(place, name))
        with contextlib.suppress(OSError):
            os.rmdir(place)
    return stay
