"""Reciprocal rank fusion of lineages; pure.

Messages vote for the conversation they belong to: what a leg ranks are the lineages of its
messages, by its best message and, where the leg scores them, by up to two more that support
it. Inside a lineage the best message, found by both kinds of leg if there is one, is the
anchor. Measured in docs/quality.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

SUPPORTING = 2
"""How many more messages of a lineage count besides its best one."""


@dataclass(frozen=True)
class Ranking:
    """What one leg found: message ids, best first.

    ``weight`` scales its votes; ``behind`` is how many lineages stand before its first (the
    relaxed leg continues where the exact one ends). With ``scores`` (0 or more; a message
    without one has 0) a lineage counts by its best score plus ``support`` times the mean of
    the next two, else by its first message alone. ``trust`` (0 … 1, a message without one has
    1) scales the vote of a message, and that of a lineage by its most trusted message.
    """

    ids: Sequence[int]
    weight: float = 1.0
    behind: int = 0
    scores: Mapping[int, float] = field(default_factory=dict)
    support: float = 0.0
    trust: Mapping[int, float] = field(default_factory=dict)


def lineages(ids: Sequence[int], lineage_of: Mapping[int, Hashable]) -> list[Hashable]:
    """Return the distinct lineages of *ids* in order of their first message."""
    return list(dict.fromkeys(lineage_of[msg_id] for msg_id in ids))


def fuse(rankings: Sequence[Ranking], lineage_of: Mapping[int, Hashable], k: int = 20) -> list[int]:
    """Return all message ids of *rankings*: an anchor of every lineage first, then the rest.

    Both parts are in order of score, the sum of ``weight * trust / (k + rank)`` over the
    rankings, of the lineage for the anchors and of the message for the rest. Equal scores
    keep the order of the rankings.
    """
    lineage_scores: dict[Hashable, float] = {}
    message_scores: dict[int, float] = {}
    for ranking in rankings:
        ids = list(dict.fromkeys(ranking.ids))
        members: dict[Hashable, list[int]] = {}
        for msg_id in ids:
            members.setdefault(lineage_of[msg_id], []).append(msg_id)
        trust = {name: max(_trust(ranking, i) for i in some) for name, some in members.items()}
        _vote(lineage_scores, _ranked(members, ranking), ranking, trust, k)
        _vote(message_scores, ids, ranking, ranking.trust, k)
    messages = sorted(message_scores, key=lambda m: -message_scores[m])
    anchors: dict[Hashable, int] = {}
    for msg_id in messages:
        anchors.setdefault(lineage_of[msg_id], msg_id)
    order = sorted(lineage_scores, key=lambda lineage: -lineage_scores[lineage])
    first = [anchors[lineage] for lineage in order]
    chosen = set(first)
    return first + [msg_id for msg_id in messages if msg_id not in chosen]


def _trust(ranking: Ranking, msg_id: int) -> float:
    return ranking.trust.get(msg_id, 1.0)


def _ranked(members: Mapping[Hashable, Sequence[int]], ranking: Ranking) -> list[Hashable]:
    """Return the lineages in the order of the ranking, by the scores where it has any."""
    if not ranking.scores:
        return list(members)
    strength: dict[Hashable, float] = {}
    for name, ids in members.items():
        best, *others = sorted((ranking.scores.get(i, 0.0) for i in ids), reverse=True)
        strength[name] = best + ranking.support * sum(others[:SUPPORTING]) / SUPPORTING
    return sorted(strength, key=lambda name: -strength[name])


def _vote(
    scores: dict[Key, float],
    keys: Sequence[Key],
    ranking: Ranking,
    trust: Mapping[Key, float],
    k: int,
) -> None:
    for rank, key in enumerate(keys, start=ranking.behind + 1):
        vote = ranking.weight * trust.get(key, 1.0) / (k + rank)
        scores[key] = scores.get(key, 0.0) + vote
