"""What ``hermes-patch status`` reports; reads files and tables, changes nothing."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from . import config, layout, migrations, nearest, spaces, store
from .config import Settings
from .deploy import describe_sending
from .engine import connect_readonly
from .errors import ConfigError

_TIERS = {nearest.PURE_PYTHON: "pure Python (this Python does not load sqlite-vec)"}
PLUGIN = Path("plugins") / "hermes_patch"


def gather(home: Path) -> dict[str, Any]:
    """Return the state of *home* as plain data: plugin, config, database, spaces, failures."""
    result: dict[str, Any] = {"home": str(home), "plugin": _plugin(home)}
    settings: Settings | None = None
    try:
        settings = config.load(home)
        result["config"] = {
            "provider": settings.provider,
            "model": settings.model,
            "min_similarity": settings.min_similarity,
            "sending": describe_sending(settings),
        }
    except ConfigError as error:
        result["config"] = {"error": str(error)}
    path = home / "state.db"
    if not path.is_file():
        result["database"] = {"error": f"{path} does not exist; Hermes makes it at its first start"}
        return result
    try:
        conn = connect_readonly(path)
        try:
            result["database"] = _database(conn, home, settings)
        finally:
            conn.close()
    except sqlite3.Error as error:
        result["database"] = {"error": f"{path} cannot be read: {error}"}
    return result


def _plugin(home: Path) -> dict[str, Any]:
    folder = home / PLUGIN
    try:
        record = json.loads((folder / "applied.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"applied": False, "folder": str(folder)}
    return {
        "applied": True,
        "folder": str(folder),
        "version": record.get("version"),
        "applied_at": record.get("applied_at"),
    }


def _database(conn: sqlite3.Connection, home: Path, settings: Settings | None) -> dict[str, Any]:
    shape = layout.read(conn)
    result: dict[str, Any] = {
        "schema_version": shape.schema_version,
        "migrations": migrations.applied(conn),
        "bytes": (home / "state.db").stat().st_size,
        "tier": _tier(conn, home, settings),
    }
    if not store.exists(conn):
        return {**result, "error": "our tables are missing; run hermes-patch apply"}
    current = _current(conn, settings)
    roles = settings.roles if settings else config.DEFAULT_ROLES
    coverage = store.coverage(conn, shape, current.id if current else None, roles)
    return {
        **result,
        "coverage": {
            "embeddable": coverage.embeddable,
            "embedded": coverage.embedded,
            "failed": coverage.failed,
            "ratio": round(coverage.ratio, 4),
        },
        "watermark": int(store.state(conn, "watermark") or 0),
        "spaces": [_space(conn, space, space == current) for space in spaces.find(conn)],
        "indexing": store.lease_holder(conn, time.time()),
        "skipped": store.skip_reasons(conn, current.id) if current else {},
        "failures": json.loads(store.state(conn, "failures") or "[]"),
    }


def _tier(conn: sqlite3.Connection, home: Path, settings: Settings | None) -> str:
    if settings is not None and settings.accelerate == "false":
        return nearest.PURE_PYTHON
    vendor = home / PLUGIN / "vendor"
    return nearest.accelerate(conn, nearest.find_library(vendor))


def _current(conn: sqlite3.Connection, settings: Settings | None) -> spaces.Space | None:
    """Return the newest space of the configured model; the exact key needs the embedder."""
    if settings is None:
        return None
    provider, model = settings.provider, settings.model
    same = [s for s in spaces.find(conn) if s.provider == provider and s.model == model]
    return same[0] if same else None


def _space(conn: sqlite3.Connection, space: spaces.Space, current: bool) -> dict[str, Any]:
    row = conn.execute(
        "SELECT count(DISTINCT msg_id), count(*), coalesce(sum(length(embedding)), 0) "
        "FROM message_embeddings WHERE space_id = ?",
        (space.id,),
    ).fetchone()
    return {
        "id": space.id,
        "provider": space.provider,
        "model": space.model,
        "dims": space.dims,
        "messages": row[0],
        "vectors": row[1],
        "bytes": row[2],
        "current": current,
    }


def lines(data: dict[str, Any]) -> list[str]:
    """Return *data* as lines for a person."""
    plugin, settings, database = data["plugin"], data["config"], data["database"]
    result = [f"home      {data['home']}"]
    if plugin["applied"]:
        result.append(f"plugin    applied, version {plugin['version']}")
    else:
        result.append("plugin    not applied; run hermes-patch apply")
    if "error" in settings:
        result.append(f"config    {settings['error']}")
    else:
        floor = settings["min_similarity"]
        result.append(f"model     {settings['model']} ({settings['provider']}), floor {floor:g}")
        result.append(f"sends     {settings['sending']}")
    if "error" in database:
        return [*result, f"database  {database['error']}"]
    return result + _database_lines(database)


def _database_lines(database: dict[str, Any]) -> list[str]:
    covered = database["coverage"]
    filled = round(20 * covered["ratio"])
    bar = "█" * filled + "░" * (20 - filled)
    counted = f"{covered['embedded']} of {covered['embeddable']} messages"
    result = [
        f"coverage  {bar} {covered['ratio']:.1%}  {counted}",
        f"search    {_TIERS.get(database['tier'], database['tier'])}",
        f"schema    {database['schema_version']}, migrations {', '.join(database['migrations'])}",
    ]
    for space in database["spaces"]:
        mark = "in use" if space["current"] else "not in use"
        size = space["bytes"] / 1e6
        result.append(
            f"space     {space['model']}, {space['dims']} dimensions, {mark}: "
            f"{space['messages']} messages, {space['vectors']} vectors, {size:.1f} MB"
        )
    if database["indexing"]:
        result.append(f"indexing  now, by {database['indexing']}")
    for reason, count in database["skipped"].items():
        result.append(f"failed    {count} messages: {reason}")
    for failure in database["failures"]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(failure["at"]))
        result.append(
            f"failure   {failure['kind']}, {failure['count']} times, last {when}: "
            f"{failure['message']}"
        )
    return result
