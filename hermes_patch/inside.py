"""Commands that need Hermes's own code, run under Hermes's Python.

Started elsewhere, the command runs itself again there, with the plugin folder on the path:
the code in use is then the one that Hermes uses.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import config, embedders
from .engine import connect_readonly, own_work
from .errors import HermesPatchError, HostError

PLUGIN = Path("plugins") / "hermes_patch"


def is_here() -> bool:
    """Tell whether this Python can import Hermes."""
    return importlib.util.find_spec("hermes_state") is not None


def reexecute(words: list[str], home: Path, python: Path | None) -> int:
    """Run the same command under Hermes's Python and return its exit code.

    Raises:
        DeployError: no Hermes was found.
        HostError: the plugin is not applied to *home*.
    """
    from .deploy import hermes

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
    return subprocess.call([str(found.python), "-m", "hermes_patch", *words], env=environment)


def _vendor(home: Path) -> Path | None:
    vendor = home / PLUGIN / "vendor"
    return vendor if vendor.is_dir() else None


def _settings() -> config.Settings:
    settings = config.load_inside_hermes()
    if not settings.enabled:
        raise HermesPatchError("config.yaml says provider: off; nothing is embedded or searched")
    return settings


def _state_db(home: Path) -> Path:
    path = home / "state.db"
    if not path.is_file():
        raise HostError(f"{path} does not exist; Hermes makes it at its first start")
    return path


def backfill(args: argparse.Namespace, home: Path) -> int:
    """Embed the history of *home*."""
    from dataclasses import replace

    from . import backfill as runner

    settings, path = _settings(), _state_db(home)
    if args.batch_size:
        settings = replace(settings, batch_size=args.batch_size)
    session_db = importlib.import_module("hermes_state").SessionDB
    embedder = embedders.create(settings, _vendor(home))
    try:
        database = runner.HomeDatabase(lambda: session_db(db_path=path), path)
        run = runner.Backfill(
            database, embedder, settings, since=_time(args.since), limit=args.limit
        )
        return _backfill(args, run)
    finally:
        embedder.close()


def _backfill(args: argparse.Namespace, run: Any) -> int:
    if not args.dry_run:
        run.prepare()
        if args.retry_failed:
            run.retry_failed()
    plan = run.plan()
    print(plan.sentence(), file=sys.stderr)
    if args.dry_run:
        _print(args, {"ok": True, "messages": plan.messages, "texts": plan.texts}, [])
        return 0
    previous = signal.signal(signal.SIGINT, lambda *_: run.stop())
    try:
        totals = _with_progress(run, plan.messages)
    finally:
        signal.signal(signal.SIGINT, previous)
    summary = f"{totals.stored} messages embedded in {totals.seconds:.1f} s"
    details = f"{totals.texts_sent} texts sent, {totals.copied} copied, {totals.failed} failed"
    lines = [f"{summary} ({details})."]
    lines += [f"  {count} × {reason}" for reason, count in totals.reasons.items()]
    if totals.stopped:
        lines.append(f"Stopped ({totals.stopped}); run it again to continue.")
    _print(args, {"ok": True, **asdict(totals)}, lines)
    return 0


def _with_progress(run: Any, total: int) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("embedding"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("embedding", total=total, rate="")

        def progress(done: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(
                task, completed=min(done, total), rate=f"{speed:.0f} messages/s" if speed else ""
            )

        return run.run(progress)


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise HermesPatchError(
            f"--since: {text!r} is no date; expected YYYY-MM-DD or YYYY-MM-DDTHH:MM"
        ) from None


def search(args: argparse.Namespace, home: Path) -> int:
    """Search the messages of *home* and print what was found."""
    from . import recall
    from .host import Host

    args.query = " ".join(args.query)

    _settings()
    path = _state_db(home)
    handle = importlib.import_module("hermes_state").SessionDB(db_path=path)
    trace = recall.Trace()
    host = Host(vendor=_vendor(home))
    host.install()
    token = recall.tool_call.set(trace)
    try:
        rows = _rows(args, host, handle)
    finally:
        recall.tool_call.reset(token)
        host.uninstall()
        handle.close()
    results = [_result(row, trace, path) for row in rows]
    _print(
        args,
        {"ok": True, "query": args.query, "results": results, "semantic": trace.semantic},
        [line for result in results for line in _result_lines(result)] or ["Nothing found."],
    )
    return 0


def _rows(args: argparse.Namespace, host: Any, handle: Any) -> list[dict[str, Any]]:
    if args.mode == "keyword":
        token = own_work.set(True)
        try:
            return list(handle.search_messages(query=args.query, limit=args.limit))
        finally:
            own_work.reset(token)
    if args.mode == "hybrid":
        return list(handle.search_messages(query=args.query, limit=args.limit))
    engine = host.engine_of(handle)
    answer = engine.query_vector(args.query, engine.settings.query_budget)
    if answer.vector is None:
        raise HermesPatchError(f"no vector for the query: {answer.reason}")
    found = handle.search_by_vector(answer.vector, top_k=args.limit)
    return [
        {**row, "id": row["msg_id"], "snippet": row["content_snippet"], "search_type": "vector"}
        for row in found
    ]


def _result(row: dict[str, Any], trace: Any, path: Path) -> dict[str, Any]:
    found = trace.found.get(row["id"])
    similarity = row.get("similarity", found.similarity if found else None)
    conn = connect_readonly(path)
    try:
        title = conn.execute(
            "SELECT title FROM sessions WHERE id = ?", (row["session_id"],)
        ).fetchone()
    finally:
        conn.close()
    return {
        "msg_id": row["id"],
        "session_id": row["session_id"],
        "title": title[0] if title else None,
        "role": row["role"],
        "session_started": row.get("session_started"),
        "search_type": row.get("search_type") or (found.search_type if found else "keyword"),
        "similarity": None if similarity is None else round(similarity, 3),
        "snippet": row["snippet"],
    }


def _result_lines(result: dict[str, Any]) -> list[str]:
    when = datetime.datetime.fromtimestamp(result["session_started"] or 0).strftime("%Y-%m-%d")
    near = "" if result["similarity"] is None else f" {result['similarity']:.2f}"
    title = result["title"] or result["session_id"]
    snippet = " ".join((result["snippet"] or "").split())
    return [f"{when}  {title}  [{result['search_type']}{near}]", f"    {result['role']}: {snippet}"]


def _print(args: argparse.Namespace, data: dict[str, Any], lines: list[str]) -> None:
    if args.json:
        print(json.dumps(data, ensure_ascii=False, indent=2))
    elif lines:
        print("\n".join(lines))
