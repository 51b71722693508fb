"""A timer of the user's own systemd: two unit files, enabled where systemctl can be reached."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from ...errors import DeployError

SECONDS = 30
_SERVICE = """\
# Written by `hermes-patch cron install`; `hermes-patch cron remove` deletes it.
[Unit]
Description=hermes-patch catch-up for {home}

[Service]
Type=oneshot
ExecStart={command}
TimeoutStartSec=120
Nice=10
"""
_TIMER = """\
# Written by `hermes-patch cron install`; `hermes-patch cron remove` deletes it.
[Unit]
Description=hermes-patch catch-up for {home}

[Timer]
OnStartupSec=5min
OnUnitActiveSec={every}
RandomizedDelaySec=1min

[Install]
WantedBy=timers.target
"""


def folder() -> Path:
    """Return where the user's units lie."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return root / "systemd" / "user"


def is_usable() -> bool:
    """Tell whether the user's systemd can be reached."""
    return shutil.which("systemctl") is not None and _systemctl("show-environment").returncode == 0


def units(job: str, home: Path, command: list[str], every: str) -> dict[Path, str]:
    """Return the unit files by path; raises DeployError for a path no unit can hold."""
    shown = str(home).replace("%", "%%")
    quoted = " ".join(map(_quoted, command))
    texts = {
        ".service": _SERVICE.format(home=shown, command=quoted),
        ".timer": _TIMER.format(home=shown, every=every),
    }
    return {folder() / f"{job}{suffix}": text for suffix, text in texts.items()}


def _quoted(word: str) -> str:
    if "\n" in word or "\r" in word:
        raise DeployError(f"{word!r}: a path with a line break cannot stand in a unit file")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + escaped.replace("$", "$$") + '"'


def timer(job: str) -> Path:
    """Return where the timer of *job* lies, or would lie."""
    return folder() / f"{job}.timer"


def enable(job: str) -> None:
    """Have systemd read the units and start the timer; raises DeployError."""
    for words in (("daemon-reload",), ("enable", "--now", f"{job}.timer")):
        done = _systemctl(*words)
        if done.returncode != 0:
            said = done.stderr.strip() or f"exit code {done.returncode}"
            raise DeployError(f"systemctl --user {' '.join(words)}: {said.splitlines()[0]}")


def remove(job: str) -> list[Path]:
    """Stop and delete the units of *job*; returns the files that were there."""
    files = [folder() / f"{job}{suffix}" for suffix in (".timer", ".service")]
    found = [file for file in files if file.exists()]
    if found and is_usable():
        _systemctl("disable", "--now", f"{job}.timer")
    for file in found:
        file.unlink()
    with contextlib.suppress(OSError):  # what a systemd that cannot be reached leaves
        (folder() / "timers.target.wants" / f"{job}.timer").unlink()
    if found and is_usable():
        _systemctl("daemon-reload")
    return found


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["systemctl", "--user", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(words), 1, "", f"{type(error).__name__}")
