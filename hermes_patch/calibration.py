"""An estimate of the similarity floor from a user's own messages and model; pure.

Some of the user's own messages stand for questions. How near they come to passages of other
conversations, taken at random, is what chance looks like; how near the nearest one comes is
what a find may look like.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any

from .errors import HermesPatchError

CHANCE = 0.95
"""The share of random pairs that the recommended floor keeps out."""
LEAST_QUESTIONS, LEAST_PASSAGES = 10, 50
"""Below these an estimate would be chance itself."""
BIN = 0.05
_BAR = 24


@dataclass(frozen=True)
class Passage:
    """A unit vector, the conversation it belongs to and the fingerprint of its text."""

    lineage: Hashable
    text_hash: str
    vector: Sequence[float] = field(repr=False)


@dataclass(frozen=True)
class Pairs:
    """Cosines of questions with random passages, and with the nearest passage of each."""

    random: list[float] = field(repr=False)
    nearest: list[float] = field(repr=False)

    @property
    def recommended(self) -> float:
        """The floor that keeps out CHANCE of the random pairs, but not half of the nearest."""
        return round(min(quantile(self.random, CHANCE), quantile(self.nearest, 0.5)), 2)


def compare(questions: Sequence[Passage], passages: Sequence[Passage]) -> Pairs:
    """Compare every question with every passage of another conversation and another text.

    Raises:
        HermesPatchError: there are too few of either.
    """
    random: list[float] = []
    nearest: list[float] = []
    for question in questions:
        cosines = [
            sum(map(mul, question.vector, passage.vector))
            for passage in passages
            if passage.lineage != question.lineage and passage.text_hash != question.text_hash
        ]
        if cosines:
            random += cosines
            nearest.append(max(cosines))
    if len(nearest) < LEAST_QUESTIONS or len(passages) < LEAST_PASSAGES:
        raise HermesPatchError(
            f"too little to go by: {len(nearest)} messages of the user and {len(passages)} "
            f"passages of other conversations have vectors, {LEAST_QUESTIONS} and "
            f"{LEAST_PASSAGES} are needed; run hermes-patch backfill or wait for more"
        )
    return Pairs(random, nearest)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* of *values* lies; raises IndexError for none."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def result(pairs: Pairs, model: str, floor: float) -> dict[str, Any]:
    """Return the figures as ``--json`` prints them."""
    return {
        "ok": True,
        "model": model,
        "random": _figures(pairs.random),
        "nearest": _figures(pairs.nearest),
        "floor": floor,
        "recommended": pairs.recommended,
        "written": False,
    }


def _figures(values: Sequence[float]) -> dict[str, Any]:
    counts: dict[int, int] = {}
    for value in values:
        number = math.floor(round(value / BIN, 6))
        counts[number] = counts.get(number, 0) + 1
    return {
        "n": len(values),
        **{f"p{round(s * 100)}": round(quantile(values, s), 3) for s in (0.05, 0.5, 0.95, 0.99)},
        "histogram": [
            [round(number * BIN, 2), counts[number] / len(values)] for number in sorted(counts)
        ],
    }


def lines(data: dict[str, Any]) -> list[str]:
    """Return the figures for a person: a histogram of both kinds of pairs, and the floors."""
    random, nearest = dict(data["random"]["histogram"]), dict(data["nearest"]["histogram"])
    first, last = min(*random, *nearest), max(*random, *nearest)
    most = max(*random.values(), *nearest.values())
    head = f"{data['model']}: {data['nearest']['n']} messages as questions, "
    table = [head + f"{data['random']['n']} random pairs", "", f"       {'random':{_BAR}}  nearest"]
    for number in range(round(first / BIN), round(last / BIN) + 1):
        start = round(number * BIN, 2)
        bars = (
            f"{'█' * round(_BAR * part.get(start, 0.0) / most):{_BAR}}"
            for part in (random, nearest)
        )
        marks = [
            f"← {name} {data[key]:.2f}"
            for key, name in (("floor", "floor in use"), ("recommended", "recommended"))
            if start <= data[key] < start + BIN
        ]
        table.append(f"{start:5.2f}  {'  '.join(bars)}  {' '.join(marks)}".rstrip())
    return table
