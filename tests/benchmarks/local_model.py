"""What the local models cost: start, a query, a backfill, memory, disk.

    python tests/benchmarks/local_model.py SET.json

The texts are the messages of an evaluation set, 400 of them spread over it, chunked as they
are in a backfill. "10,000 messages" is computed from them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from hermes_patch import text as texts
from hermes_patch.config import Settings
from hermes_patch.deploy import hermes, vendor
from hermes_patch.embedders import profiles
from hermes_patch.embedders.local import LocalEmbedder

MESSAGES, QUERIES = 400, 30
QUESTION = "what did we decide about the backup of the server, number {}"


def resident(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def installed(model: str) -> float:
    """Return the size of the packages that apply puts into the plugin folder, in MB."""
    here = hermes.running()
    names = vendor.wanted(Settings(model=model), here)
    got = vendor.collect(names, here, here, Path(sys.executable), Path("unused"))
    return sum(path.stat().st_size for path in got.files.values()) / 1e6


def measure(model: str, messages: list[str]) -> dict[str, float]:
    """Return the figures of one model."""
    embedder = LocalEmbedder(model)
    started = time.perf_counter()
    embedder.embed_query("ready", 120.0)
    first = time.perf_counter() - started
    queries = []
    for number in range(QUERIES):
        started = time.perf_counter()
        embedder.embed_query(QUESTION.format(number), 60.0)
        queries.append(time.perf_counter() - started)
    most = profiles.find(model).max_tokens
    chunks = [chunk.text for text in messages for chunk in texts.chunks(text, most)]
    started = time.perf_counter()
    for at in range(0, len(chunks), embedder.batch_size):
        embedder.embed_documents(chunks[at : at + embedder.batch_size])
    speed = len(messages) / (time.perf_counter() - started)
    child = embedder._engine.child
    memory = resident(child.pid) if child is not None else 0.0
    embedder.close()
    return {
        "start_s": first,
        "query_ms": statistics.median(queries) * 1e3,
        "messages_per_s": speed,
        "minutes_for_10000": 10_000 / speed / 60,
        "child_mb": memory,
        "installed_mb": installed(model),
    }


def main(file: str) -> None:
    """Measure every local model and print a table."""
    data = json.loads(Path(file).read_text(encoding="utf-8"))
    every = [m["text"] for session in data["sessions"] for m in session["messages"]]
    chosen = every[:: max(1, len(every) // MESSAGES)][:MESSAGES]
    size = statistics.mean(len(text.encode()) for text in chosen)
    print(f"{len(chosen)} messages of {size:.0f} bytes on average")
    for model in profiles.LOCALS:
        figures = measure(model, chosen)
        print(f"{model:28}", "  ".join(f"{name} {value:.1f}" for name, value in figures.items()))


if __name__ == "__main__":
    main(sys.argv[1])
