"""The trade between recall and noise: one leg alone over its threshold; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .measures import Answer, curve
from .sets import EvaluationSet

CUT = 5
POINTS = 20
"""About how many points of a curve are printed."""
BELOW = 0.05
"""How far below the floor the curve of the similarities begins."""


class Best(NamedTuple):
    """The nearest hit of a question: its session, and its cosine as it counts."""

    session: str
    strength: float


class Point(NamedTuple):
    """One threshold: session recall@5, and the share of hopeless questions left empty.

    ``quiet`` is None in a set that has no question without an answer.
    """

    threshold: float
    recall: float
    quiet: float | None


@dataclass(frozen=True)
class Swept:
    """What one leg alone answers at each of ``thresholds``, cosines or coverages, ascending.

    ``used`` names those in use, which are among them. ``answers`` has the sessions found at
    each threshold by the id of the question, best first; ``best`` the nearest hit at all.
    """

    thresholds: Sequence[float]
    used: Mapping[str, float]
    answers: Mapping[str, Sequence[Sequence[str]]] = field(repr=False)
    best: Mapping[str, Best] = field(default_factory=dict, repr=False)


def points(given: EvaluationSet, swept: Swept) -> list[Point]:
    """Return a point for every threshold at which anything is decided, in their order.

    Similarities begin a little below the least of the floor and the best hits, so that a lower
    floor is seen too, and end at the greatest of them; coverages at 0 and 1.
    """
    low, high = _bounds(swept)
    return [
        _point(given, swept, at, threshold)
        for at, threshold in enumerate(swept.thresholds)
        if low <= threshold <= high
    ]


def _bounds(swept: Swept) -> tuple[float, float]:
    if not swept.best:
        return 0.0, 1.0
    values = [*(best.strength for best in swept.best.values()), *swept.used.values()]
    return round(min(values) - BELOW, 4), math.ceil(100 * max(values)) / 100


def _point(given: EvaluationSet, swept: Swept, at: int, threshold: float) -> Point:
    found = {query.id: Answer(tuple(swept.answers[query.id][at])) for query in given.queries}
    hopeless = [not swept.answers[query.id][at] for query in given.unanswerable]
    quiet = sum(hopeless) / len(hopeless) if hopeless else None
    return Point(threshold, curve(given, found)[CUT - 1], quiet)


def thinned(line: Sequence[Point], used: Mapping[str, float]) -> list[Point]:
    """Return about :data:`POINTS` of *line*, those in use among them."""
    step = max(1, round(len(line) / POINTS))
    even = {n / 100 for n in range(0, 101, step)}
    return [point for point in line if point.threshold in {*even, *used.values()}]


def best_hits(given: EvaluationSet, swept: Swept) -> dict[str, list[float]]:
    """Return the strengths of the best hits: right, wrong, of questions without an answer."""
    groups: dict[str, list[float]] = {"right": [], "wrong": [], "hopeless": []}
    for query in (*given.queries, *given.unanswerable):
        best = swept.best.get(query.id)
        if best is not None:
            right = "right" if best.session in query.gold_sessions else "wrong"
            groups[right if query.gold_sessions else "hopeless"].append(best.strength)
    return groups
