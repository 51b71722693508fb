"""The relaxed leg: messages that share enough rare vocabulary with the query.

A plain question and its answer share few words, and those are spread over the turns of a
conversation. So a message counts together with the one before and the one after it: half of
what they are worth is added to its relevance, and what the three contain together has to
cover enough of the query. Measured in docs/quality.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from . import legs, nearest, postings, rows, units
from .layout import Filters, Layout
from .query import Query, fold, is_cjk
from .rows import Message
from .units import Scorer

GATE = 0.35
"""Least coverage of a hit with its neighbours. Lower, messages that share one word with a
paraphrase push out what the vectors found; higher, conversations are lost whose words are."""

ALONE_GATE = 0.25
"""The same where no vectors were asked: there is nothing to protect then."""

SORTED_GATE = 0.6
"""The same when hits are ordered by time, where a weak one can be the first; without
neighbours."""

LEAST = 0.1
"""Least coverage of a hit by itself."""

NEIGHBOUR = 0.5
"""What the relevance of a neighbouring message counts for."""

SUPPORT = 0.5
"""What further hits in a conversation count for, see ``fusion.Ranking``."""

TRUST = 1.5
"""The power of its coverage that a hit votes with: a weak one supports, it does not decide."""

EXAMINED = 600
"""The most candidates whose text is read."""

MAX_READ_CHARS = 4_000_000
"""How much text is scored at most, that of the most promising messages first."""


@dataclass(frozen=True)
class Hit:
    """A message with its BM25 relevance and its coverage (0 … 1), neighbours included.

    ``repeats``: its text differs from that of a better hit in numbers only.
    """

    msg_id: int
    relevance: float
    coverage: float
    repeats: bool = False

    @property
    def trust(self) -> float:
        """How much of a vote the hit has, 0 … 1."""
        return float(min(1.0, self.coverage) ** TRUST)


@dataclass(frozen=True)
class Gate:
    """What a hit must cover: with its neighbours, and by itself."""

    together: float
    alone: float


@dataclass(frozen=True)
class _Candidate:
    message: Message
    kin: str
    counts: tuple[list[int], int]


def scorer_of(
    conn: sqlite3.Connection, layout: Layout, query: Query
) -> tuple[Scorer, dict[units.Unit, set[int]]]:
    """Return the scorer of *query* and which messages may contain each of its units."""
    wanted = units.of(query)
    found = postings.find(conn, layout, wanted, [term for term in query.terms if is_cjk(term)])
    total = postings.total(conn)
    return Scorer({unit: units.idf(total, len(found[unit])) for unit in wanted}), found


def unweighted(query: Query) -> Scorer:
    """Return a scorer to which all units are equal, for when no table may be asked."""
    return Scorer(dict.fromkeys(units.of(query), 1.0))


def search(
    conn: sqlite3.Connection,
    layout: Layout,
    query: Query,
    filters: Filters,
    scorer: Scorer,
    found: Mapping[units.Unit, set[int]],
    gate: Gate,
    deadline: float | None = None,
) -> list[Hit]:
    """Return the messages that share enough rare vocabulary with *query*, best first.

    Ranked by BM25 over content words and CJK bigrams, gated by idf-weighted coverage; terms
    after NOT exclude. At most ``legs.DEPTH``.

    Raises:
        BudgetExceeded: after *deadline*, a value of ``time.monotonic()``.
    """
    candidates = _candidates(conn, layout, query, filters, scorer, found, deadline)
    scored = _with_neighbours(conn, candidates, scorer, gate)
    scored.sort(key=lambda hit: (-hit.relevance, -hit.msg_id))
    kin = {one.message.id: one.kin for one in candidates}
    first, others = legs.spread(scored, lambda hit: kin[hit.msg_id])
    return [*first, *(replace(hit, repeats=True) for hit in others)]


def _candidates(
    conn: sqlite3.Connection,
    layout: Layout,
    query: Query,
    filters: Filters,
    scorer: Scorer,
    found: Mapping[units.Unit, set[int]],
    deadline: float | None,
) -> list[_Candidate]:
    result, read = [], 0
    promising = _promising(found, postings.total(conn))
    for message in rows.load(conn, promising, layout, filters, deadline):
        nearest.check_time(deadline)
        if read >= MAX_READ_CHARS:
            break
        text = units.sample(message.searchable)
        read += len(text)
        if not legs.mentions(message, query.excluded):
            counts = scorer.counts(fold(text))
            result.append(_Candidate(message, legs.kin_of(message.text), counts))
    return result


def _promising(found: Mapping[units.Unit, set[int]], total: int) -> list[int]:
    """Return the candidates that contain most of the query's idf mass, at most EXAMINED."""
    mass: dict[int, float] = {}
    for ids in found.values():
        weight = units.idf(total, len(ids))
        for msg_id in ids:
            mass[msg_id] = mass.get(msg_id, 0.0) + weight
    return sorted(mass, key=lambda i: (-mass[i], -i))[:EXAMINED]


def _with_neighbours(
    conn: sqlite3.Connection, candidates: Sequence[_Candidate], scorer: Scorer, gate: Gate
) -> list[Hit]:
    """Return the candidates that pass *gate*, each with what stands next to it."""
    scores = scorer.scores([one.counts for one in candidates])
    own = {one.message.id: score for one, score in zip(candidates, scores, strict=True)}
    counts = {one.message.id: one.counts[0] for one in candidates}
    beside: dict[int, list[int]] = {msg_id: [] for msg_id in own}
    for one, other in rows.adjacent(conn, [c.message for c in candidates]):
        beside[one].append(other)
        beside[other].append(one)
    hits = []
    for msg_id, score in own.items():
        near = beside[msg_id]
        together = scorer.coverage([counts[msg_id], *(counts[i] for i in near)])
        if score.coverage >= gate.alone and together >= gate.together:
            added = sum(own[i].relevance for i in near)
            hits.append(Hit(msg_id, score.relevance + NEIGHBOUR * added, together))
    return hits


def incomplete(messages: Sequence[Message], scorer: Scorer, gate: Gate) -> list[Hit]:
    """Return those of the host's incomplete rows that pass *gate* by themselves, best first."""
    scores = scorer.scores_of(messages)
    hits = [
        Hit(message.id, score.relevance, score.coverage)
        for message, score in zip(messages, scores, strict=True)
        if score.coverage >= gate.together
    ]
    return sorted(hits, key=lambda hit: -hit.relevance)
