"""``hermes-patch catch-up``, inside Hermes's Python: what the worker would do, once and quietly.

For installs whose processes end before their worker is done. The consent is the worker's:
messages written after ``apply``, and texts that were edited; never the older history.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import config, embedders, migrations, redaction, store, upstream
from ..errors import HermesPatchError, HostError, LeaseHeld
from ..guard import run_within
from ..text import counted
from . import PLUGIN, show, vendor_of

if TYPE_CHECKING:
    from ..backfill import HomeDatabase, Totals
    from ..config import Settings

SECONDS = 70.0
"""No batch is begun after so long; Hermes's cron ends a script after 120 s."""
LONGEST_SECONDS = 95.0
"""A batch that hangs is given up then; what it would have embedded stays pending."""


def catch_up(args: argparse.Namespace, home: Path) -> int:
    """Embed what is pending of the messages that are new since ``apply``."""
    settings = config.load_inside_hermes()
    path = home / "state.db"
    if not (settings.enabled and settings.realtime):
        return _nothing(args, "config.yaml does not ask for new messages to be embedded")
    if not path.is_file():
        return _nothing(args, f"{path} does not exist yet")
    applied_at = _applied_at(home)
    redaction.use(upstream.redact)
    settings = replace(settings, timeout=min(settings.timeout, 20.0))
    try:
        totals = run_within(
            LONGEST_SECONDS, lambda: _work(settings, path, vendor_of(home), applied_at), "catch-up"
        )
    except LeaseHeld:
        return _nothing(args, "another process indexes just now")
    done = counted(totals.stored, "message")
    lines = [f"{done} embedded."] if sys.stdout.isatty() else []
    show(args, {"ok": True, **asdict(totals)}, lines)
    return 0


def _nothing(args: argparse.Namespace, reason: str) -> int:
    show(args, {"ok": True, "stored": 0, "reason": reason}, [])
    return 0


def _applied_at(home: Path) -> float:
    """Return when *home* was patched: older messages are history."""
    path = home / PLUGIN / "applied.json"
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["applied_at"])
    except FileNotFoundError:
        raise HostError(
            f"{path} does not exist: run `hermes-patch apply`, or `hermes-patch cron remove`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise HostError(f"{path} cannot be read; run hermes-patch apply again") from None


def _work(settings: Settings, path: Path, vendor: Path | None, applied_at: float) -> Totals:
    from .. import backfill

    session_db = importlib.import_module("hermes_state").SessionDB
    database = backfill.HomeDatabase(lambda: session_db(db_path=path), path)
    mark = _watermark(database, applied_at)
    embedder = embedders.create(settings, vendor)
    totals, ends = backfill.Totals(), time.monotonic() + SECONDS
    try:
        for above, edited in ((mark, False), (0, True)):
            run = backfill.Backfill(
                database,
                embedder,
                settings,
                above=above,
                edited=edited,
                seconds=ends - time.monotonic(),
                patience=0.0,
            )
            if run.has_work():
                totals.take(run.run())
    finally:
        embedder.close()
    if totals.failed and not totals.stored:
        why = next(iter(totals.reasons), "no reason was given")
        raise HermesPatchError(f"{counted(totals.failed, 'message')} failed: {why}")
    return totals


def _watermark(database: HomeDatabase, applied_at: float) -> int:
    """Return the highest id of the history; makes our tables where they are missing."""
    with database.reader() as conn:
        mark = store.watermark(conn) if store.exists(conn) else None
        waiting = bool(migrations.pending(conn))
    if waiting:
        database.write(migrations.apply)
    if mark is not None:
        return mark
    return database.write(lambda conn: migrations.set_watermark(conn, before=applied_at))
