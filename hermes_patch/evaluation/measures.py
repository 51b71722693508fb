"""What a list of answers is worth: recall, reciprocal rank, empty answers, intervals; pure.

A question counts as found at k when any of its gold sessions (for ``hit@k``: messages) is
among the first k distinct ones of the answer.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .sets import EvaluationSet, Query

CUTS = (1, 3, 5, 10)
DEPTH = 10
"""How many sessions of an answer count."""
RESAMPLES = 2000
SEED = 20240607
LEVEL = 0.95
DIGITS = 4

RECALLS = tuple(f"session_recall@{k}" for k in CUTS)
HITS = tuple(f"hit@{k}" for k in CUTS)
MRR = "mrr@10"
METRICS = (*RECALLS, MRR, *HITS, "empty")
QUIET = "unanswerable_empty"


@dataclass(frozen=True)
class Answer:
    """What was found for one question, best first: sessions and messages of the set."""

    sessions: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """A mean over questions with its bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How much better one mode is than another, question by question.

    ``p`` is the two-sided bootstrap probability of a difference that large by chance.
    """

    mean: float
    low: float
    high: float
    p: float


def rank(found: Iterable[str], gold: Collection[str]) -> int | None:
    """Return the place of the first of *gold* among the distinct *found*, from 1, or None."""
    distinct = dict.fromkeys(found)
    return next((place for place, one in enumerate(distinct, 1) if one in gold), None)


def scores(answer: Answer, query: Query) -> dict[str, float]:
    """Return every one of :data:`METRICS` for one question, each 0 … 1."""
    session = rank(answer.sessions, query.gold_sessions)
    message = rank(answer.messages, query.gold)
    return {
        **{f"session_recall@{k}": _within(session, k) for k in CUTS},
        MRR: 1.0 / session if session is not None and session <= DEPTH else 0.0,
        **{f"hit@{k}": _within(message, k) for k in CUTS},
        "empty": float(not answer.sessions),
    }


def _within(place: int | None, k: int) -> float:
    return float(place is not None and place <= k)


def bootstrap(rows: Sequence[tuple[float, ...]]) -> list[Estimate]:
    """Return mean and percentile interval of every column of *rows*, one row a question."""
    return _estimates(rows, _resampled(rows))


def _estimates(
    rows: Sequence[tuple[float, ...]], drawn: Sequence[tuple[float, ...]]
) -> list[Estimate]:
    columns = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    spread = [sorted(column) for column in zip(*drawn, strict=True)]
    bounds = [(_quantile(one, (1 - LEVEL) / 2), _quantile(one, (1 + LEVEL) / 2)) for one in spread]
    return [Estimate(mean, low, high) for mean, (low, high) in zip(columns, bounds, strict=True)]


def _resampled(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Return the column means of RESAMPLES draws of as many rows, the same ones every time."""
    source = random.Random(SEED)
    # Many questions score alike: distinct rows are drawn with their frequency, in an order
    # that does not depend on that of the questions.
    counted = sorted(Counter(rows).items())
    kinds = [row for row, _ in counted]
    weights = [count for _, count in counted]
    means = []
    for _ in range(RESAMPLES):
        drawn = Counter(source.choices(range(len(kinds)), weights, k=len(rows)))
        sums = [0.0] * len(kinds[0])
        for index, count in drawn.items():
            sums = [total + count * value for total, value in zip(sums, kinds[index], strict=True)]
        means.append(tuple(total / len(rows) for total in sums))
    return means


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def paired(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare two modes by their scores of the same questions, *one* minus *other*."""
    rows = [(a - b,) for a, b in zip(one, other, strict=True)]
    drawn = _resampled(rows)
    estimate = _estimates(rows, drawn)[0]
    means = [row[0] for row in drawn]
    most = min(sum(mean <= 0 for mean in means), sum(mean >= 0 for mean in means))
    p = 2 * (most + 1) / (len(means) + 1)  # never 0: a draw not made might differ
    return Difference(estimate.mean, estimate.low, estimate.high, min(1.0, p))


def summary(
    given: EvaluationSet, answers: Mapping[str, Answer], *, categories: bool = True
) -> dict[str, Any]:
    """Return the figures of one mode with ``intervals`` and, maybe, per category."""
    result = _figures(given.queries, given.unanswerable, answers)
    names = {query.category for query in chain(given.queries, given.unanswerable)} - {""}
    if categories:
        result["categories"] = {
            name: _figures(
                [query for query in given.queries if query.category == name],
                [query for query in given.unanswerable if query.category == name],
                answers,
            )
            for name in sorted(names)
        }
    return result


def _figures(
    queries: Sequence[Query], hopeless: Sequence[Query], answers: Mapping[str, Answer]
) -> dict[str, Any]:
    estimates: dict[str, Estimate] = {}
    if queries:
        rows = [tuple(scores(answers[query.id], query).values()) for query in queries]
        estimates.update(zip(METRICS, bootstrap(rows), strict=True))
    if hopeless:
        quiet = [(float(not answers[query.id].sessions),) for query in hopeless]
        estimates[QUIET] = bootstrap(quiet)[0]
    means = {name: _rounded(estimates, name) for name in (*METRICS, QUIET)}
    bounds = {name: [round(e.low, DIGITS), round(e.high, DIGITS)] for name, e in estimates.items()}
    return {"n": len(queries), **means, "unanswerable_n": len(hopeless), "intervals": bounds}


def _rounded(estimates: Mapping[str, Estimate], name: str) -> float | None:
    return round(estimates[name].mean, DIGITS) if name in estimates else None


def comparison(
    given: EvaluationSet, one: Mapping[str, Answer], other: Mapping[str, Answer], metric: str
) -> Difference:
    """Compare two modes on one metric over the questions of a set."""
    first, second = (
        [scores(answers[query.id], query)[metric] for query in given.queries]
        for answers in (one, other)
    )
    return paired(first, second)


def curve(given: EvaluationSet, answers: Mapping[str, Answer]) -> list[float]:
    """Return session recall at 1 … DEPTH."""
    ranks = [rank(answers[query.id].sessions, query.gold_sessions) for query in given.queries]
    count = len(ranks)
    return [sum(_within(place, k) for place in ranks) / count for k in range(1, DEPTH + 1)]
