"""What a whole session_search takes in a large store, part by part.

    python tests/benchmarks/end_to_end.py FOLDER [--messages N] [--python EXE] [--hermes NAME …]

FOLDER holds evaluation sets (memorybank-zh.json …). Their sentences, drawn at random, make the
messages, so that words are as frequent as in talk; their questions are asked. The first
messages are embedded by the default model, the others get vectors mixed of those. Prints
Markdown: medians and the slowest of all questions, memory and size on disk.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import targets
from hermes_patch import deploy
from hermes_patch import text as texts

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SETS = ("memorybank-zh", "memorybank-en", "cmrc-zh", "locomo-en")
EMBEDDED = 400
IN_SESSION = 50
QUESTIONS = 40
PARTS = ("keyword", "embedding", "vector", "relaxed", "hydration", "ours", "whole")
_ENDS = re.compile(r"(?<=[.!?。！？\n])\s*")


def sentences(folder: Path) -> tuple[list[list[str]], list[str]]:
    """Return the sentences of each set, and questions of all of them."""
    said, asked = [], []
    for name in SETS:
        data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        whole = [m["text"] for session in data["sessions"] for m in session["messages"]]
        said.append([s for text in whole for s in _ENDS.split(text) if s.strip()])
        asked += [query["text"] for query in data["queries"]][: QUESTIONS // len(SETS)]
    return said, asked


def messages(said: list[list[str]], count: int) -> Iterator[str]:
    """Yield texts of two or three sentences of one set, distinct but for chance."""
    source = random.Random(1)
    for _ in range(count):
        pool = source.choice(said)
        yield " ".join(source.choice(pool) for _ in range(source.randint(2, 3)))


def fill(path: Path) -> None:
    """Give every message without a vector one that is mixed of two that are there."""
    with closing(sqlite3.connect(path)) as conn:
        space, dims = conn.execute("SELECT id, dims FROM embedding_spaces").fetchone()
        blobs = [row[0] for row in conn.execute("SELECT embedding FROM message_embeddings")]
        pool = numpy.frombuffer(b"".join(blobs), "<f4").reshape(-1, dims)
        source = numpy.random.default_rng(1)
        rows = conn.execute(
            "SELECT id, session_id, content FROM messages WHERE id NOT IN "
            "(SELECT msg_id FROM message_embeddings) ORDER BY id"
        ).fetchall()
        for at in range(0, len(rows), 2000):
            some = rows[at : at + 2000]
            pairs = pool[source.integers(len(pool), size=(2, len(some)))]
            mixed = pairs.sum(axis=0) + 0.02 * source.standard_normal((len(some), dims))
            mixed /= numpy.linalg.norm(mixed, axis=1, keepdims=True)
            conn.executemany(
                "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
                "created_at, space_id, chunk_end) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (*row[:2], vector.tobytes(), texts.text_hash(row[2]), dims, 1.0, space)
                    + (len(row[2]),)
                    for row, vector in zip(some, mixed.astype("<f4"), strict=True)
                ),
            )
            conn.commit()


def measure(
    target: targets.Target, python: str, folder: Path, count: int, work: Path
) -> dict[str, Any]:
    """Build a home of *target* in *work* and return what the searches in it took."""
    hermes = targets.provide(target, python)
    home = work / "home"
    home.mkdir(parents=True)
    said, asked = sentences(folder)
    lines = work / "messages.jsonl"
    with lines.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(text) + "\n" for text in messages(said, count))
    _say(f"{target.name}: writing {count} messages")
    hermes.run(SCRIPTS / "large_history.py", lines, IN_SESSION, home=home, timeout=1800)
    database = home / "state.db"
    plain = _bytes(database)
    deploy.apply(home, hermes_python=hermes.python)
    command = [
        "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))",
        *("backfill", "--hermes-home", home, "--limit", EMBEDDED),
    ]
    _say(f"{target.name}: embedding {EMBEDDED}")
    package = {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}
    hermes.run(*command, home=home, env=package, timeout=1800)
    _say(f"{target.name}: vectors for the others")
    fill(database)
    _say(f"{target.name}: searching")
    given = {"queries": asked[4:], "warm": asked[:4], "settle": 120}
    found: dict[str, Any] = hermes.run_json(
        SCRIPTS / "timed_search.py", json.dumps(given), home=home, timeout=1800
    )
    return {**found, "bytes": (plain, _bytes(database))}


def _bytes(database: Path) -> int:
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, size = (conn.execute(f"PRAGMA page_{n}").fetchone()[0] for n in ("count", "size"))
    return int(pages) * int(size)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def parts(row: dict[str, float]) -> dict[str, float]:
    """Return the parts of one search that are shown."""
    legs = row.get("vector", 0.0) + row.get("relaxed", 0.0)
    return {**row, "hydration": row.get("fuse", 0.0) - legs, "ours": row.get("widen", 0.0)}


def lines_of(name: str, found: dict[str, Any], count: int) -> list[str]:
    """Return the table's row of one release, and its memory."""
    rows = [parts(row) for row in found["rows"]]
    cells = []
    for part in PARTS:
        values = sorted(row.get(part, 0.0) for row in rows)
        cells.append(f"{statistics.median(values):.0f} / {values[-1]:.0f}")
    first, (plain, grown) = found["first"], found["bytes"]
    return [
        f"| {name} | {' | '.join(cells)} |",
        "",
        f"{name}: first search {first['whole']:.0f} ms (its vector leg {first['vector']:.0f}); "
        f"resident {found['rss_before']:.0f} MB before, {found['rss']:.0f} after, children "
        f"{', '.join(f'{mb:.0f}' for mb in found['children'])}; state.db {plain / 1e6:.0f} MB "
        f"without, {grown / 1e6:.0f} with vectors ({(grown - plain) / count:.0f} bytes a message); "
        f"codes {found['codes']}; {found['semantic']}; {found['failures'] or 'no failures'}",
        "",
    ]


def main() -> None:
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    top.add_argument("folder", type=Path)
    top.add_argument("--messages", type=int, default=100_000)
    top.add_argument("--python", default=sys.executable, help="makes the environments of Hermes")
    top.add_argument("--hermes", nargs="*", default=["0.19.0", "0.22.2"])
    args = top.parse_args()
    print(f"| | {' | '.join(PARTS)} |\n|{'---|' * (len(PARTS) + 1)}")
    for target in targets.CI:
        if target.name.removeprefix("hermes-") in args.hermes:
            with tempfile.TemporaryDirectory(prefix="end-to-end-") as work:
                found = measure(target, args.python, args.folder, args.messages, Path(work))
            print("\n".join(lines_of(target.name, found, args.messages)), flush=True)


if __name__ == "__main__":
    main()
