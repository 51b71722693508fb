"""Runs under Hermes's Python, as a file: asks Hermes's own cron, and tells it, about our job.

``probe`` | ``create SCRIPT NAME SCHEDULE`` | ``remove SCRIPT``; the answer is the last line, JSON.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any


def probe() -> dict[str, Any]:
    """Tell whether scripts run without the model, and whether a gateway runs them (or None)."""
    try:
        jobs = importlib.import_module("cron.jobs")
        known = set(inspect.signature(jobs.create_job).parameters)
        can = {"script", "no_agent", "deliver"} <= known and hasattr(jobs, "remove_job")
    except (ImportError, AttributeError):
        return {"can": False, "gateway": None}
    return {"can": can, "gateway": _gateway() if can else None}


def _gateway() -> bool | None:
    try:
        running = importlib.import_module("gateway.status").get_running_pid
        quietly = {"cleanup_stale": False}
        known = inspect.signature(running).parameters
        return running(**{k: v for k, v in quietly.items() if k in known}) is not None
    except Exception:
        return None


def create(script: str, name: str, schedule: str) -> dict[str, Any]:
    """Have one job that runs *script*; an equal one that is there stays as it is."""
    jobs = importlib.import_module("cron.jobs")
    wanted = jobs.parse_schedule(schedule)
    found = _ours(jobs, script)
    same = [job for job in found if job.get("schedule") == wanted and job.get("no_agent")]
    for job in found:
        if job not in same[:1]:
            jobs.remove_job(job["id"])
    if same:
        return {"id": same[0]["id"], "action": "unchanged"}
    job = jobs.create_job(
        prompt="", schedule=schedule, name=name, script=script, no_agent=True, deliver="local"
    )
    return {"id": job["id"], "action": "updated" if found else "created"}


def remove(script: str) -> dict[str, Any]:
    """Remove every job that runs *script*."""
    jobs = importlib.import_module("cron.jobs")
    return {"removed": [job["id"] for job in _ours(jobs, script) if jobs.remove_job(job["id"])]}


def _ours(jobs: Any, script: str) -> list[dict[str, Any]]:
    return [job for job in jobs.list_jobs(include_disabled=True) if job.get("script") == script]


if __name__ == "__main__":
    action: Callable[..., dict[str, Any]] = globals()[sys.argv[1]]
    print("\n" + json.dumps(action(*sys.argv[2:])))
