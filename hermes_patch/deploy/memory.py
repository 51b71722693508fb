"""The second plugin folder, ``plugins/semantic``: the door of the long-term memory.

It holds no code of its own beyond the door; that is in the first folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from .._version import __version__
from ..errors import DeployError
from . import folder
from .folder import Workplace
from .report import Step

NAME = "semantic"
_MANIFEST = f"""\
name: {NAME}
version: "{__version__}"
description: "Long-term memory that is recalled by meaning."
author: hermes-patch
kind: exclusive
"""


def path_in(home: Path) -> Path:
    """Return where the folder lives in *home*."""
    return home / "plugins" / NAME


def is_there(home: Path) -> bool:
    """Tell whether apply made the folder."""
    return (path_in(home) / folder.APPLIED).is_file()


def put(
    home: Path, undo: contextlib.ExitStack, works: list[Workplace], *, dry_run: bool = False
) -> Step:
    """Make the folder, or bring it up to date; *undo* learns how to take that back.

    Where it works goes into *works*, for the caller to close at the very end.

    Raises:
        DeployError: a folder of that name is there that we did not make.
    """
    target = path_in(home)
    files: folder.Files = {
        "plugin.yaml": _MANIFEST.encode("ascii"),
        "__init__.py": Path(__file__).with_name("memory_shim.py").read_bytes(),
    }
    record = {
        "format": folder.FORMAT,
        "version": __version__,
        "files": {name: folder.digest(content) for name, content in files.items()},
    }
    before = folder.read_record(target)
    if before == record and folder.is_intact(target, before["files"]):
        return Step("memory folder", str(target), "unchanged")
    action = "created" if before is None else "updated"
    if dry_run:
        return Step("memory folder", str(target), action)
    work = Workplace(home)
    works.append(work)
    folder.build(files, work.new)
    if before is not None:
        folder.carry(target, folder.strangers(target, before["files"]), work.new)
    (work.new / folder.APPLIED).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    folder.swap(work, target, undo)
    return Step("memory folder", str(target), action)


def remove(home: Path) -> list[Step]:
    """Take the folder away, files of others kept; the notes stay."""
    target = path_in(home)
    if not is_there(home):
        return []
    try:
        record = folder.read_record(target)
    except DeployError:
        return [Step("memory folder", str(target), "kept")]
    kept = folder.clear(target, (record or {})["files"])
    with contextlib.suppress(OSError):
        os.rmdir(target.parent)
    return [Step("memory folder", str(target), "updated" if kept else "removed")]
