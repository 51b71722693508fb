"""``hermes-patch search``, inside Hermes's Python."""

from __future__ import annotations

import argparse
import datetime
import importlib
from contextlib import closing
from pathlib import Path
from typing import Any

from .. import recall
from ..connecting import connect_readonly
from ..embedders import sending
from ..engine import own_work
from ..errors import HermesPatchError
from ..host import Host
from . import read_settings, show, state_db, vendor_of


def search(args: argparse.Namespace, home: Path, host: Host | None = None) -> int:
    """Search the messages of *home* and print what was found."""
    data = find(args, home, host)
    show(args, data, lines(data))
    return 0


def find(args: argparse.Namespace, home: Path, host: Host | None = None) -> dict[str, Any]:
    """Return what was found in *home*, through *host* where Hermes is patched already.

    Raises:
        HermesPatchError: the query is empty, all is off, or there is nothing to search.
    """
    args.query = " ".join(args.query).strip()
    if not args.query:
        raise HermesPatchError("the query is empty; say what you look for")
    read_settings()
    path = state_db(home)
    handle = importlib.import_module("hermes_state").SessionDB(db_path=path)
    trace = recall.Trace()
    own = host is None
    host = host or Host(vendor=vendor_of(home))
    if own:
        host.install()
    token = recall.tool_call.set(trace)
    try:
        rows, semantic = _rows(args, host, handle)
    finally:
        recall.tool_call.reset(token)
        if own:
            host.uninstall()
        handle.close()
    results = [_result(row, trace, path) for row in rows]
    semantic = semantic or trace.semantic or {"status": "not asked"}
    return {"ok": True, "query": args.query, "results": results, "semantic": semantic}


def _rows(
    args: argparse.Namespace, host: Host, handle: Any
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the rows found and what the vector leg says of itself, None for "see the trace"."""
    if args.mode == "hybrid":
        return list(handle.search_messages(query=args.query, limit=args.limit)), None
    if args.mode == "keyword":
        token = own_work.set(True)
        try:
            rows = list(handle.search_messages(query=args.query, limit=args.limit))
        finally:
            own_work.reset(token)
        return rows, {"status": "not asked: keywords only"}
    engine = host.engine_of(handle)
    safe = sending.query(args.query, engine.settings)
    answer = engine.query_vector(safe, engine.settings.query_budget)
    if answer.vector is None:
        raise HermesPatchError(f"no vector for the query: {answer.reason}")
    found = handle.search_by_vector(answer.vector, top_k=args.limit)
    rows = [
        {**row, "id": row["msg_id"], "snippet": row["content_snippet"], "search_type": "vector"}
        for row in found
    ]
    with engine.reader() as conn:
        return rows, recall.describe(engine, conn, "")


def _result(row: dict[str, Any], trace: recall.Trace, path: Path) -> dict[str, Any]:
    found = trace.found.get(row["id"])
    similarity = row.get("similarity", found.similarity if found else None)
    with closing(connect_readonly(path)) as conn:
        query = "SELECT title FROM sessions WHERE id = ?"
        title = conn.execute(query, (row["session_id"],)).fetchone()
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


def lines(data: dict[str, Any]) -> list[str]:
    """Return what :func:`find` found as lines for a person."""
    results, semantic = data["results"], data["semantic"]
    shown = [line for result in results for line in _result_lines(result)] or ["Nothing found."]
    if semantic["status"].startswith("unavailable"):
        shown.append(f"(meaning was not searched: {semantic['status']})")
    elif "note" in semantic:
        shown.append(f"({semantic['note']})")
    return shown


def _result_lines(result: dict[str, Any]) -> list[str]:
    when = datetime.datetime.fromtimestamp(result["session_started"] or 0).strftime("%Y-%m-%d")
    near = "" if result["similarity"] is None else f" {result['similarity']:.2f}"
    title = result["title"] or result["session_id"]
    snippet = " ".join((result["snippet"] or "").split())
    return [f"{when}  {title}  [{result['search_type']}{near}]", f"    {result['role']}: {snippet}"]
