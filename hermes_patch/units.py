"""The search terms of the relaxed leg, and how well a text covers them.

A *unit* is a content word (matched with its common endings) or a pair of neighbouring CJK
characters. Units are weighed by idf: a text is relevant by BM25, and *covers* a query by the
share of the query's idf mass that it contains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .query import CJK, Query, fold

MAX_WORDS = 32
MAX_BIGRAMS = 48
HEAD_CHARS, TAIL_CHARS = 15_000, 5_000
"""Of a longer text only so much of its beginning and of its end counts."""

_K1, _B = 1.2, 0.75
_LETTER = rf"[^\W_{CJK}]"
_ENDINGS = ("ings", "ing", "ed", "ers", "er", "es", "s", "ly", "e")
_LEAST_STEM = 4


class Searchable(Protocol):
    """What is scored: a message of ``rows``."""

    @property
    def searchable(self) -> str:
        """Everything of it that can be searched."""


@dataclass(frozen=True)
class Unit:
    """One term: ``start`` is what a matching word begins with, ``pattern`` the whole of it.

    ``is_word`` is False for a CJK bigram, which matches anywhere. ``is_prefix`` is True when
    words that only begin with ``start`` may match.
    """

    start: str
    pattern: str
    is_word: bool
    is_prefix: bool = False


@dataclass(frozen=True)
class Score:
    """How well a text matches: BM25 relevance and coverage (0 … 1)."""

    relevance: float
    coverage: float


def of(query: Query) -> list[Unit]:
    """Return the units of *query*, words first; bounded in number."""
    words = dict.fromkeys(map(_word, query.words[:MAX_WORDS]))
    bigrams = dict.fromkeys(run[i : i + 2] for run in query.runs for i in range(len(run) - 1))
    pairs = [Unit(pair, re.escape(pair), is_word=False) for pair in bigrams]
    return [*words, *pairs[:MAX_BIGRAMS]]


def _word(word: str) -> Unit:
    start, tail = _stem(word)
    escaped = re.escape(start)
    # The literal stands first: so the engine skips to it, ten times as fast.
    pattern = rf"{escaped}(?<!{_LETTER}{escaped}){tail}(?!{_LETTER})"
    return Unit(start, pattern, is_word=True, is_prefix=bool(tail))


def _stem(word: str) -> tuple[str, str]:
    """Return what inflected forms of *word* begin with, and a pattern for what follows."""
    if not word.isalpha() or len(word) < _LEAST_STEM:
        return word, ""
    if not word.isascii():
        return word[: max(_LEAST_STEM, len(word) - 2)], r"\w{0,4}"
    if word.endswith(("y", "ies", "ied")) and len(word) > _LEAST_STEM:
        return word[: -1 if word.endswith("y") else -3], "(?:y|i|ies|ied|ying|ily)"
    for ending in _ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _LEAST_STEM:
            doubled = stem[-1] == stem[-2] and stem[-1] not in "aeiouls"
            return (stem[:-1] if doubled else stem), "[a-z]{0,4}"
    return word, "[a-z]{0,4}"


def idf(total: int, containing: int) -> float:
    """Return the weight of a unit found in *containing* of *total* messages."""
    return math.log(1 + (max(total - containing, 0) + 0.5) / (containing + 0.5))


def parts(text: str) -> list[tuple[int, str]]:
    """Return the parts of *text* that count, each with its place: all, or head and tail."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return [(0, text)]
    return [(0, text[:HEAD_CHARS]), (len(text) - TAIL_CHARS, text[-TAIL_CHARS:])]


def sample(text: str) -> str:
    """Return what counts of *text* as one text."""
    return "\n".join(part for _, part in parts(text))


class Scorer:
    """Scores folded texts against units of known weight."""

    def __init__(self, weights: Mapping[Unit, float]) -> None:
        self._units = [(re.compile(unit.pattern), unit, w) for unit, w in weights.items()]
        self._mass = sum(weights.values()) or 1.0

    def counts(self, folded: str) -> tuple[list[int], int]:
        """Return how often each unit occurs in a folded text, and the text's length."""
        return [
            len(pattern.findall(folded)) if unit.is_word else folded.count(unit.start)
            for pattern, unit, _ in self._units
        ], len(folded)

    def scores_of(self, messages: Sequence[Searchable]) -> list[Score]:
        """Return the scores of messages, in order."""
        return self.scores([self.counts(fold(sample(m.searchable))) for m in messages])

    def coverage(self, counted: Sequence[Sequence[int]]) -> float:
        """Return the share of the query's idf mass that texts contain together."""
        columns = zip(*counted, strict=True)
        return (
            sum(w for column, (_, _, w) in zip(columns, self._units, strict=True) if any(column))
            / self._mass
        )

    def scores(self, counted: Sequence[tuple[list[int], int]]) -> list[Score]:
        """Return the scores of texts that were counted, with their mean length as the norm."""
        mean = sum(length for _, length in counted) / len(counted) if counted else 1.0
        return [self._score(counts, length / (mean or 1.0)) for counts, length in counted]

    def _score(self, counts: Sequence[int], relative: float) -> Score:
        norm = _K1 * (1 - _B + _B * relative)
        relevance = covered = 0.0
        for count, (_, _, weight) in zip(counts, self._units, strict=True):
            if count:
                covered += weight
                relevance += weight * count * (_K1 + 1) / (count + norm)
        return Score(relevance, covered / self._mass)

    def spans(self, folded: str) -> list[tuple[int, int, float]]:
        """Return (start, end, weight) of every occurrence, in the order of the text."""
        found = [
            (*match.span(), weight)
            for pattern, _, weight in self._units
            for match in pattern.finditer(folded)
        ]
        return sorted(found)
