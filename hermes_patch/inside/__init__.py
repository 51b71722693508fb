"""Commands that need Hermes's own code, run under Hermes's Python.

Started elsewhere, the command runs itself again there, with the plugin folder on the path:
the code in use is then the one that Hermes uses.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import config
from ..errors import HermesPatchError, HostError

PLUGIN = Path("plugins") / "hermes_patch"


def is_here() -> bool:
    """Tell whether this Python can import Hermes."""
    return importlib.util.find_spec("hermes_state") is not None


def reexecute(words: list[str], home: Path, python: Path | None, *, replace: bool) -> int:
    """Run the same command under Hermes's Python and return its exit code.

    ``replace`` puts it in the place of this process where the system can: signals then
    reach it, and nobody is left behind.

    Raises:
        DeployError: no Hermes was found.
        HostError: the plugin is not applied to *home*.
    """
    command, environment = _command(words, home, python)
    if replace and os.name == "posix":
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(command[0], command, environment)
    return subprocess.call(command, env=environment)


def ask(words: list[str], home: Path, python: Path | None) -> dict[str, Any]:
    """Run a command with ``--json`` under Hermes's Python and return what it prints.

    Raises:
        DeployError, HostError: as :func:`reexecute`.
        HermesPatchError: the command failed, with its own message.
    """
    command, environment = _command([*words, "--json"], home, python)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8")
    try:
        data = json.loads(done.stdout)
    except ValueError:
        raise HermesPatchError(f"{words[0]} ended with {done.returncode} and no result") from None
    if not isinstance(data, dict) or not data.get("ok"):
        raise HermesPatchError(str(data.get("error") if isinstance(data, dict) else data))
    return data


def _command(words: list[str], home: Path, python: Path | None) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that run *words* under Hermes's Python."""
    from ..deploy import hermes

    found = hermes.find_hermes_python(home, python)
    folder = home / PLUGIN
    if not (folder / "hermes_patch").is_dir():
        raise HostError(f"{folder} does not exist; run hermes-patch apply first")
    paths = [str(folder), *([str(found.source_dir)] if found.source_dir else [])]
    environment = dict(
        os.environ,
        HERMES_HOME=str(home),
        PYTHONPATH=os.pathsep.join(paths),
        PYTHONDONTWRITEBYTECODE="1",
    )
    # -P: a folder of our name in the working directory must not hide the plugin's.
    return [str(found.python), "-P", "-m", "hermes_patch", *words], environment


def vendor_of(home: Path) -> Path | None:
    """Return the plugin's folder of packages, None where there is none."""
    vendor = home / PLUGIN / "vendor"
    return vendor if vendor.is_dir() else None


def read_settings() -> config.Settings:
    """Return the settings as Hermes reads them; raises HermesPatchError when all is off."""
    settings = config.load_inside_hermes()
    if not settings.enabled:
        raise HermesPatchError("config.yaml says provider: off; nothing is embedded or searched")
    return settings


def state_db(home: Path) -> Path:
    """Return the path of the home's database; raises HostError where there is none."""
    path = home / "state.db"
    if not path.is_file():
        raise HostError(f"{path} does not exist; Hermes makes it at its first start")
    return path


def show(args: argparse.Namespace, data: dict[str, Any], lines: list[str]) -> None:
    """Print a result: *data* with --json, else *lines*."""
    if args.json:
        print(json.dumps(data, ensure_ascii=False, indent=2))
    elif lines:
        print("\n".join(lines))
