"""``hermes-patch backfill``, inside Hermes's Python."""

from __future__ import annotations

import argparse
import datetime
import importlib
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import embedders, redaction, upstream
from ..errors import HermesPatchError
from ..text import counted
from . import read_settings, show, state_db, vendor_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..backfill import Backfill, Totals

LINE_SECONDS = 30.0
"""Time between two lines of progress where there is no terminal."""


def backfill(args: argparse.Namespace, home: Path) -> int:
    """Embed the history of *home*."""
    from .. import backfill as runner

    settings, path = read_settings(), state_db(home)
    redaction.use(upstream.redact)
    since = _time(args.since)
    if args.batch_size:
        settings = replace(settings, batch_size=args.batch_size)
    session_db = importlib.import_module("hermes_state").SessionDB
    embedder = embedders.create(settings, vendor_of(home))
    try:
        database = runner.HomeDatabase(lambda: session_db(db_path=path), path)
        run = runner.Backfill(
            database, embedder, settings, since=since, limit=args.limit, notify=_Notes()
        )
        return _backfill(args, run, embedder.is_local)
    finally:
        embedder.close()


def _backfill(args: argparse.Namespace, run: Backfill, is_local: bool) -> int:
    if not args.dry_run:
        run.prepare()
        if args.retry_failed:
            run.retry_failed()
    plan = run.plan()
    print(plan.sentence(), file=sys.stderr)
    if args.dry_run:
        show(args, {"ok": True, "messages": plan.messages, "texts": plan.texts}, [])
        return 0
    with _interruptible(run):
        totals = _with_progress(run, plan.messages)
    show(args, {"ok": True, **asdict(totals)}, _lines(totals, is_local) if plan.messages else [])
    return 0


@contextmanager
def _interruptible(run: Backfill) -> Iterator[None]:
    """Ctrl-C finishes the batch that is under way, a second one stops at once."""

    def interrupt(*_: object) -> None:
        if run.is_stopping:
            raise KeyboardInterrupt
        print("finishing the batch; Ctrl-C again stops at once", file=sys.stderr)
        run.stop()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _lines(totals: Totals, is_local: bool) -> list[str]:
    summary = f"{counted(totals.stored, 'message')} embedded in {totals.seconds:.1f} s"
    texts, how = counted(totals.texts_sent, "text"), "computed here" if is_local else "sent"
    lines = [f"{summary} ({texts} {how}, {totals.copied} copied, {totals.failed} failed)."]
    lines += [f"  {count} × {reason}" for reason, count in totals.reasons.items()]
    if totals.stopped:
        lines.append(f"Stopped ({totals.stopped}); run it again to continue.")
    return lines


class _Notes:
    """Prints to stderr why nothing seems to happen, each sentence once in a row."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, sentence: str) -> None:
        if sentence != self._last:
            print(f"  {sentence}", file=sys.stderr, flush=True)
        self._last = sentence


def _with_progress(run: Backfill, total: int) -> Totals:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        return run.run(_line_now_and_then(total))
    columns = (
        TextColumn("embedding"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("embedding", total=total, rate="")

        def progress(done: int) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.0f} messages/s" if speed else ""
            bar.update(task, completed=min(done, total), rate=rate)

        return run.run(progress)


def _line_now_and_then(total: int) -> Callable[[int], None]:
    printed = time.monotonic()

    def progress(done: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            print(f"  {done} of {counted(total, 'message')}", file=sys.stderr, flush=True)

    return progress


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise HermesPatchError(
            f"--since: {text!r} is no date; expected YYYY-MM-DD or YYYY-MM-DDTHH:MM"
        ) from None
