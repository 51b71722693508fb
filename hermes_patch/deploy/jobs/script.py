"""The script that a catch-up job runs, in ``$HERMES_HOME/scripts``; also the job's record."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ...errors import DeployError

NAME = "hermes_patch_catch_up.py"
_MARK = "# hermes-patch: "
_TEXT = '''\
"""Embeds messages that are new since `hermes-patch apply`, once and quietly.

Written by `hermes-patch cron install`; `hermes-patch cron remove` deletes it.
"""
{mark}{record}

import os
import sys

here = os.path.dirname(os.path.realpath(__file__))
# Another script beside this one must not take the place of a module.
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != here]
home = os.path.dirname(here)
folder = os.path.join(home, "plugins", "hermes_patch")
sys.path.insert(0, folder)
sys.path += {source!r}
sys.dont_write_bytecode = True
os.environ["HERMES_HOME"] = home
if not os.path.isfile(os.path.join(folder, "applied.json")):
    sys.exit(
        f"{{folder}} does not exist: run `hermes-patch apply`, or `hermes-patch cron remove`"
    )

from hermes_patch.cli import main

sys.exit(main(["catch-up", "--hermes-home", home]))
'''


def path(home: Path) -> Path:
    """Return where the script of *home* lies."""
    return home / "scripts" / NAME


def identity(home: Path) -> str:
    """Return what names the job of *home* among those of other homes."""
    digest = hashlib.sha256(str(home).encode("utf-8", "surrogateescape")).hexdigest()
    return f"hermes-patch-{digest[:8]}"


def text(record: dict[str, Any], source_dir: Path | None) -> str:
    """Return the script; *record* is kept in it."""
    source = [str(source_dir)] if source_dir else []
    return _TEXT.format(mark=_MARK, record=json.dumps(record), source=source)


def record(home: Path) -> dict[str, Any] | None:
    """Return what an earlier install recorded, None where there is no script.

    Raises:
        DeployError: a file of that name is there and is not ours.
    """
    file = path(home)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        found = next(line for line in lines if line.startswith(_MARK))
        return dict(json.loads(found.removeprefix(_MARK)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, StopIteration):
        raise DeployError(
            f"{file}: exists, but `hermes-patch cron install` did not write it; move it away"
        ) from None
