"""The catch-up job of a home: put where something will run it, found again, taken back.

Whatever runs it, it runs one script in ``$HERMES_HOME/scripts``, which is its record too.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DeployError
from . import crontab, hermes_cron, script, systemd

METHODS = ("hermes", "systemd", "crontab")
EVERY = ("15m", "30m", "1h", "2h", "3h", "4h", "6h", "12h", "1d")


@dataclass(frozen=True)
class Job:
    """The catch-up job of a home; ``problem`` is "" or why it will not run, or last failed."""

    method: str
    every: str
    path: str
    problem: str = ""


def find(home: Path) -> Job | None:
    """Return the job of *home*, None where there is none; changes nothing."""
    try:
        record = script.record(home)
    except DeployError:
        return None
    if record is None:
        return None
    name, every = script.identity(home), str(record.get("every", "?"))
    job = hermes_cron.find(home)
    if job is not None:
        return Job("hermes", every, str(hermes_cron.file(home)), _problem(job))
    if systemd.timer(name).is_file():
        return Job("systemd", every, str(systemd.timer(name)))
    with contextlib.suppress(DeployError):
        if crontab.find(name) is not None:
            return Job("crontab", every, "crontab")
    method = str(record.get("method", "?"))
    return Job(method, every, str(script.path(home)), "it is gone; `hermes-patch cron install`")


def _problem(job: dict[str, Any]) -> str:
    if not job.get("enabled", True):
        return "paused; `hermes cron resume` goes on"
    error = str(job.get("last_error") or "").strip()
    return f"the last run failed: {error.splitlines()[-1]}" if error else ""
