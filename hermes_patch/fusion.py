"""Reciprocal rank fusion of lineages, by rank only; pure.

Messages vote for the conversation they belong to: what a leg ranks are the lineages of its
messages. Inside a lineage the best message, found by both kinds of leg if there is one, is
the anchor.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Ranking:
    """What one leg found: message ids, best first.

    ``weight`` scales its votes; ``behind`` is how many lineages stand before its first (the
    relaxed leg continues where the exact one ends).
    """

    ids: Sequence[int]
    weight: float = 1.0
    behind: int = 0


def lineages(ids: Sequence[int], lineage_of: Mapping[int, Hashable]) -> list[Hashable]:
    """Return the distinct lineages of *ids* in order of their first message."""
    return list(dict.fromkeys(lineage_of[msg_id] for msg_id in ids))


def fuse(rankings: Sequence[Ranking], lineage_of: Mapping[int, Hashable], k: int = 60) -> list[int]:
    """Return all message ids of *rankings*: an anchor of every lineage first, then the rest.

    Both parts are in order of score, the sum of ``weight / (k + rank)`` over the rankings,
    of the lineage for the anchors and of the message for the rest. Equal scores keep the
    order of the rankings.
    """
    lineage_scores: dict[Hashable, float] = {}
    message_scores: dict[int, float] = {}
    for ranking in rankings:
        ids = list(dict.fromkeys(ranking.ids))
        _vote(lineage_scores, lineages(ids, lineage_of), ranking, k)
        _vote(message_scores, ids, ranking, k)
    messages = sorted(message_scores, key=lambda m: -message_scores[m])
    anchors: dict[Hashable, int] = {}
    for msg_id in messages:
        anchors.setdefault(lineage_of[msg_id], msg_id)
    order = sorted(lineage_scores, key=lambda lineage: -lineage_scores[lineage])
    first = [anchors[lineage] for lineage in order]
    chosen = set(first)
    return first + [msg_id for msg_id in messages if msg_id not in chosen]


def _vote(scores: dict[Key, float], keys: Sequence[Key], ranking: Ranking, k: int) -> None:
    for rank, key in enumerate(keys, start=ranking.behind + 1):
        scores[key] = scores.get(key, 0.0) + ranking.weight / (k + rank)
