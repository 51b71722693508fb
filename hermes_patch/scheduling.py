"""``hermes-patch cron``: the job that catches up every hour."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .deploy import jobs


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``hermes-patch cron``."""
    command.add_argument("action", choices=("install", "remove"))
    command.add_argument("--every", choices=jobs.EVERY, default="1h", help="how often; default: 1h")
    command.add_argument(
        "--with",
        dest="method",
        choices=jobs.METHODS,
        help="what runs it; default: Hermes's own cron where its gateway runs scripts without "
        "the model, else a systemd user timer, else a line in the crontab",
    )
    command.add_argument("--dry-run", action="store_true", help="say what would be done")


def command(args: argparse.Namespace, home: Path, python: Path | None) -> int:
    """Run ``hermes-patch cron``; returns its exit code."""
    from .deploy.jobs import placing

    if args.action == "install":
        report = placing.install(
            home, every=args.every, method=args.method, hermes_python=python, dry_run=args.dry_run
        )
    else:
        report = placing.remove(home, hermes_python=python, dry_run=args.dry_run)
    if args.json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    else:
        print("\n".join(report.lines()))
    return 0
