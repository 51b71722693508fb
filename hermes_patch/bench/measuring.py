"""Runs every method on every store, each in a process of its own, one after the other."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import HermesPatchError
from . import methods, stores

ONCE = 20_000
"""From so many vectors on the guide's scan is asked once: it takes seconds."""
WHOLE = 200_000
"""Up to so many vectors the guide's scan reads all; of more it reads PART, and that is scaled."""
PART = 100_000
EXACT = (methods.PLAIN_VEC, methods.GUIDE, methods.NUMPY)
"""Whose answers the others' are compared with, the first that there is."""
_SECONDS = 3600.0
_FOLDER = Path(__file__).resolve().parents[2]


def run(sizes: Sequence[tuple[int, int]], queries: int, python: Path) -> dict[str, Any]:
    """Return the figures of stores of (vectors, dimensions), as ``--json`` prints them.

    Raises:
        HermesPatchError: a method failed.
    """
    rows: list[dict[str, Any]] = []
    floors: dict[str, float] = {}
    notes: dict[str, None] = {}
    for size, dims in sizes:
        name = f"{size} × {dims}"
        print(f"{name}: making the store", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="hermes-patch-bench-") as folder:
            path = Path(folder) / "state.db"
            asked = stores.build(path, size, dims)[:queries]
            found = _store(path, asked, size, dims, python, notes)
        rows += _rows(found, size, dims)
        floors[name] = bandwidth(size * dims * 4)
    about = f"{platform.machine()}, {os.cpu_count()} cores, methods run by {python.name}"
    return {"ok": True, "machine": about, "rows": rows, "floor_ms": floors, "notes": [*notes]}


def _store(
    path: Path,
    queries: list[list[float]],
    size: int,
    dims: int,
    python: Path,
    notes: dict[str, None],
) -> dict[str, dict[str, Any]]:
    found = {}
    for method in methods.METHODS:
        print(f"{size} × {dims}: {method}", file=sys.stderr)
        once = method == methods.GUIDE and size >= ONCE
        part = PART if once and size > WHOLE else None
        given = {"dims": dims, "queries": queries[:1] if once else queries, "warm": not once}
        outcome = _method(path, method, given | {"rows": part}, python)
        if outcome is None:
            notes[f"Without {method}: {methods.ABSENT}."] = None
            continue
        if part is not None:
            outcome = {**outcome, "ms": [ms * size / part for ms in outcome["ms"]], "ids": []}
            notes[f"The guide's scan at {size} vectors: extrapolated from {part}."] = None
        found[method] = outcome
    return found


def _method(path: Path, method: str, given: dict[str, Any], python: Path) -> dict[str, Any] | None:
    """Return what one method took, None where it needs an extension that is not to be had."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_paths())}
    done = subprocess.run(
        [str(python), "-m", "hermes_patch.bench.methods", str(path), method],
        input=json.dumps(given),
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=_SECONDS,
    )
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout)
        return result
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if methods.ABSENT in last:
        return None
    raise HermesPatchError(f"{method} ended with {done.returncode}: {last}")


def _paths() -> list[str]:
    """Return where a bare Python finds us and sqlite-vec."""
    from .. import nearest

    library = nearest.find_library()
    beside = [str(Path(library).parents[1])] if library else []
    return [str(_FOLDER), *beside]


def _rows(found: dict[str, dict[str, Any]], size: int, dims: int) -> list[dict[str, Any]]:
    answers = (found[name]["ids"] for name in EXACT if name in found)
    exact: list[list[int]] = next((ids for ids in answers if ids), [])
    medians = {method: statistics.median(one["ms"]) for method, one in found.items()}
    result = []
    for method, one in found.items():
        kept = [len(set(a) & set(b)) / len(b) for a, b in zip(one["ids"], exact, strict=False)]
        result.append(
            {
                "size": size,
                "dims": dims,
                "method": method,
                "ms": round(medians[method], 3),
                "first_ms": one["first_ms"] and round(one["first_ms"], 1),
                "ratio_to_guide": _ratio(medians, methods.GUIDE, method),
                "ratio_to_sqlite_vec": _ratio(medians, methods.PLAIN_VEC, method),
                "recall_at_20": round(statistics.mean(kept), 4) if kept else None,
                "rss_mb": one["rss_mb"],
                "child_mb": one["child_mb"],
                "codes": one["codes"],
            }
        )
    return result


def _ratio(medians: dict[str, float], base: str, method: str) -> float | None:
    """Return how many times as fast as *base* a method is."""
    return round(medians[base] / medians[method], 3) if base in medians else None


def bandwidth(size: int) -> float:
    """Return the milliseconds in which *size* bytes are read once by one thread, at best."""
    block = bytearray(min(size, 256 * 1024 * 1024))
    best = min(_read(block) for _ in range(3))
    return round(best * 1e3 * size / len(block), 3)


def _read(block: bytearray) -> float:
    started = time.perf_counter()
    block.find(b"\x01")  # which is not there: the C library looks at every byte
    return time.perf_counter() - started
