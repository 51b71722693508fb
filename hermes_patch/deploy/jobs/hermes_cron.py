"""Hermes's own cron, from outside: asked under Hermes's Python, read as a file."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ...errors import DeployError
from ..hermes import Found
from . import script

NAME = "hermes-patch catch-up"
SECONDS = 60


def file(home: Path) -> Path:
    """Return where Hermes keeps its jobs."""
    return home / "cron" / "jobs.json"


def find(home: Path) -> dict[str, Any] | None:
    """Return our job as Hermes recorded it, None where there is none or none can be read."""
    try:
        jobs = json.loads(file(home).read_text(encoding="utf-8"))
        jobs = jobs["jobs"] if isinstance(jobs, dict) else jobs
        return next((job for job in jobs if job.get("script") == script.NAME), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def probe(found: Found, home: Path) -> dict[str, Any]:
    """Return ``can`` (run scripts without the model) and ``gateway`` (runs; None: unknown)."""
    try:
        return _ask(found, home, "probe")
    except DeployError:
        return {"can": False, "gateway": None}


def create(found: Found, home: Path, every: str) -> str:
    """Have one job that runs our script; returns what was done, as a Step says it."""
    return str(_ask(found, home, "create", script.NAME, NAME, f"every {every}")["action"])


def remove(found: Found, home: Path) -> None:
    """Remove every job that runs our script; raises DeployError."""
    _ask(found, home, "remove", script.NAME)


def _ask(found: Found, home: Path, *words: str) -> dict[str, Any]:
    environment = dict(os.environ, HERMES_HOME=str(home), PYTHONDONTWRITEBYTECODE="1")
    environment["PYTHONPATH"] = str(found.source_dir or "")
    command = [str(found.python), "-P", str(Path(__file__).with_name("in_hermes.py")), *words]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        return dict(json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2]))
    except subprocess.TimeoutExpired:
        raise DeployError(f"Hermes's cron: no answer to {words[0]} in {SECONDS} s") from None
    except (OSError, ValueError) as error:
        raise DeployError(
            f"Hermes's cron: {words[0]} failed ({type(error).__name__}); see `hermes cron list`"
        ) from None
