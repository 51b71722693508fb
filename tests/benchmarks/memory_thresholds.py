"""Where two notes say the same, and how near a question is to its note: thresholds of a model.

    python tests/benchmarks/memory_thresholds.py [--model e5-use-centred] [--json]

Measures the pairs of memory_pairs.json with a local model: how many paraphrases and how many
distinct facts reach each threshold, with and without the comparison of details, and how far
questions are from the note that answers them and from all notes where none does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hermes_patch.embedders import profiles
from hermes_patch.embedders.local import LocalEmbedder
from hermes_patch.memory import details
from hermes_patch.query import has_cjk
from hermes_patch.vectors import cosine

PAIRS = Path(__file__).with_name("memory_pairs.json")
THRESHOLDS = [0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.88, 0.90, 0.92, 0.94, 0.95, 0.96]
FLOORS = [0.20, 0.25, 0.28, 0.30, 0.32, 0.35, 0.38, 0.40]


def measure(model: str) -> dict[str, Any]:
    """Return the similarities of all pairs and questions with a local model."""
    data = json.loads(PAIRS.read_text(encoding="utf-8"))
    gap = profiles.find(model).language_gap
    embedder = LocalEmbedder(model)
    try:
        texts = sorted(
            {text for kind in ("same", "distinct") for pair in data[kind] for text in pair}
        )
        items = embedder.embed_documents(texts)
        known = {text: item.vector or [] for text, item in zip(texts, items, strict=True)}
        pairs = {
            kind: [
                (cosine(known[a], known[b]), details.differ(a, b), has_cjk(a + b))
                for a, b in data[kind]
            ]
            for kind in ("same", "distinct")
        }
        notes = [pair[0] for pair in data["same"]]

        def strengths(query: str) -> list[float]:
            vector = embedder.embed_query(query, 30)
            return [
                cosine(vector, known[note]) + (gap if has_cjk(note) is not has_cjk(query) else 0.0)
                for note in notes
            ]

        answered = []
        for index, question in data["questions"]:
            near = strengths(question)
            answered.append((near[index], sum(one > near[index] for one in near)))
        best = [max(strengths(query)) for query in data["unrelated"]]
    finally:
        embedder.close()
    return {"model": model, "pairs": pairs, "answered": answered, "unrelated": best}


def _share(values: Sequence[bool]) -> str:
    return f"{sum(values):3d}/{len(values)}"


def report(found: dict[str, Any]) -> list[str]:
    """Return the tables as lines."""
    same, distinct = found["pairs"]["same"], found["pairs"]["distinct"]
    lines = [
        f"model {found['model']}",
        "",
        "at least   paraphrases (en, zh)   distinct (en, zh)   distinct, details compared",
    ]
    for least in THRESHOLDS:
        parts = []
        for pairs in (same, distinct):
            parts += [
                _share([p[0] >= least for p in pairs if p[2] is cjk]) for cjk in (False, True)
            ]
        kept = _share([p[0] >= least and not p[1] for p in distinct])
        lines.append(f"{least:.2f}   " + "   ".join([*parts, kept]))
    lines.append(f"paraphrases whose details seem to differ: {sum(p[1] for p in same)}")
    lines += [
        "",
        "floor   questions that reach their note   and it is of five   unrelated that reach any",
    ]
    for floor in FLOORS:
        reached = [near >= floor for near, _ in found["answered"]]
        served = [near >= floor and rank < 5 for near, rank in found["answered"]]
        wrong = [near >= floor for near in found["unrelated"]]
        lines.append(f"{floor:.2f}   {_share(reached)}   {_share(served)}   {_share(wrong)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=profiles.LOCAL, choices=profiles.LOCALS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.model)
    print(json.dumps(found, indent=1) if args.json else "\n".join(report(found)))


if __name__ == "__main__":
    main()
