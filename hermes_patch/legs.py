"""Two of the three legs of a search: exact and vector; the third is in ``relaxed``.

Each returns messages in its own order of relevance. None of them knows of the others, and
a leg that fails or runs out of time costs its own hits only.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from . import nearest, rows
from . import text as texts
from .layout import Filters, Layout
from .query import CJK, Query, fold, is_cjk
from .rows import Message
from .units import Scorer

DEPTH = 100
"""How many messages each of our legs ranks."""

KIN_CHARS = 1000
"""How much of the beginning and of the end of long texts must agree for them to be kin."""

LEVELLED = 600
"""How many of the nearest messages are read to see in which script they are."""

SHALLOW, DEEPEST = LEVELLED + DEPTH // 2, 32 * DEPTH
"""How many neighbours the vector leg looks at to find DEPTH that are no repetition, and how
many where those are not enough."""

SUPPORT = 0.3
"""What further near messages of a conversation count for, see ``fusion.Ranking``."""

SORTED_FLOOR = 0.08
"""Added to the floor of the vector leg when hits are ordered by time."""

T = TypeVar("T")
_DIGITS = re.compile(r"\d+")
_HAS_CJK = re.compile(f"[{CJK}]")


@dataclass(frozen=True)
class VectorQuery:
    """A query vector of ``dims`` numbers, the space it belongs to, and the least cosine.

    ``opening`` is the cosine that the best hit must reach for the leg to say anything: the
    best of many unrelated messages is nearer than a single one, so the floor of one hit is no
    answer to "is there anything at all?". None for the floor itself. ``language_gap`` is added
    where the query is in Chinese, Japanese or Korean and the passage is not, or the other way
    round: across languages the same meaning is less near. ``source`` names candidates in large
    stores.
    """

    space_id: int
    dims: int
    vector: Sequence[float] = field(repr=False)
    floor: float
    opening: float | None = None
    language_gap: float = 0.0
    source: nearest.Source | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Split:
    """The host's rows by what they contain: ids of exact hits, ids that lack some term."""

    exact: list[int]
    partial: list[int]


@dataclass(frozen=True)
class VectorHit:
    """A message near the query: cosine and the bounds of its best chunk in the text.

    ``strength`` is what counts: the cosine, with the gap between languages made up for.
    ``repeats``: its text differs from that of a nearer hit in numbers only.
    """

    message: Message
    similarity: float
    start: int
    end: int
    strength: float = 0.0
    repeats: bool = False


def contains(message: Message, terms: Iterable[str]) -> bool:
    """Tell whether *message* contains every folded term: words whole, CJK runs anywhere."""
    text = fold(message.searchable)
    return all(_occurs(term, text) for term in terms)


def mentions(message: Message, terms: Iterable[str]) -> bool:
    """Tell whether *message* contains any of the folded terms."""
    wanted = list(terms)
    text = fold(message.searchable) if wanted else ""
    return any(_occurs(term, text) for term in wanted)


def _occurs(term: str, folded: str) -> bool:
    at = folded.find(term)
    while at >= 0:
        if is_cjk(term) or not (_is_letter(folded, at - 1) or _is_letter(folded, at + len(term))):
            return True
        at = folded.find(term, at + 1)
    return False


def _is_letter(text: str, at: int) -> bool:
    return 0 <= at < len(text) and text[at].isalnum() and not is_cjk(text[at])


def exact(
    host_rows: Sequence[Mapping[str, Any]],
    messages: Mapping[int, Message],
    query: Query,
    scorer: Scorer,
) -> Split:
    """Sort the host's rows into those that contain all terms of *query* and those that do not.

    The host orders by relevance, except where it fell back to LIKE: then by time, which says
    nothing about relevance and would mislead the fusion. Those are put in our order.
    """
    whole: list[int] = []
    partial: list[int] = []
    for row in host_rows:
        message = messages.get(row["id"])
        lacks = message is not None and not contains(message, query.terms)
        (partial if lacks else whole).append(row["id"])
    if any(map(is_cjk, query.terms)) and _is_by_time(host_rows):
        known = [messages[i] for i in whole if i in messages]
        scores = dict(zip((m.id for m in known), scorer.scores_of(known), strict=True))
        whole.sort(key=lambda i: -scores[i].relevance if i in scores else 0.0)
    return Split(whole, partial)


def _is_by_time(host_rows: Sequence[Mapping[str, Any]]) -> bool:
    times = [row["timestamp"] for row in host_rows]
    return len(times) > 2 and times[0] > times[-1] and times == sorted(times, reverse=True)


def vector(
    conn: sqlite3.Connection,
    layout: Layout,
    query: Query,
    filters: Filters,
    wanted: VectorQuery,
    floor: float,
    stale: list[int] | None = None,
    deadline: float | None = None,
) -> list[VectorHit]:
    """Return the messages nearest to the query vector, one for every distinct text.

    A vector whose message was edited since is left out and its message added to *stale*;
    messages with a term after NOT are left out. At most :data:`DEPTH`.

    Raises:
        VectorError: the query vector is not one of the space.
        BudgetExceeded: after *deadline*, a value of ``time.monotonic()``.
    """
    for depth in (SHALLOW, DEEPEST):
        found = nearest.nearest(
            conn,
            wanted.space_id,
            wanted.dims,
            wanted.vector,
            depth,
            floor - wanted.language_gap,
            filters,
            layout,
            deadline,
            wanted.source,
        )
        opening = wanted.opening or floor
        if not found or found[0].similarity + wanted.language_gap < opening:
            return []
        edited = list[int]()
        served = _served(conn, layout, query, found, edited, deadline)
        if wanted.language_gap:
            served = _across(served, query, wanted.language_gap, floor)
        first, others = spread(served, lambda hit: kin_of(hit.message.text))
        if len(first) == DEPTH or len(found) < depth:
            break
    if stale is not None:
        stale += edited
    if not first or first[0].strength < opening:
        return []
    return [*first, *(replace(hit, repeats=True) for hit in others)]


def _across(
    hits: Iterator[VectorHit], query: Query, gap: float, floor: float
) -> Iterator[VectorHit]:
    """Yield the nearest hits by strength, those in the other kind of script *gap* nearer."""
    if not query.terms:
        yield from (hit for hit in hits if hit.strength >= floor)
        return
    asked = any(map(is_cjk, query.terms))
    levelled = []
    for hit in islice(hits, LEVELLED):
        said = _HAS_CJK.search(hit.message.text, hit.start, hit.end) is not None
        levelled.append(hit if said is asked else replace(hit, strength=hit.similarity + gap))
    levelled.sort(key=lambda hit: -hit.strength)
    yield from (hit for hit in levelled if hit.strength >= floor)


def kin_of(text: str) -> str:
    """Return what *text* has in common with those that differ in numbers and dates only."""
    if len(text) <= 4 * KIN_CHARS:
        return _DIGITS.sub("0", fold(text))
    # Twice as much is read as is compared: numbers of other lengths move what follows them.
    head, tail = kin_of(text[: 2 * KIN_CHARS]), kin_of(text[-2 * KIN_CHARS :])
    return f"{head[:KIN_CHARS]}\n{tail[-KIN_CHARS:]}"


def spread(hits: Iterable[T], kin: Callable[[T], str]) -> tuple[list[T], list[T]]:
    """Return the first hit of each kin and the others, so that no repetition drowns the rest.

    At most :data:`DEPTH` in all; no more of *hits* are asked for than that takes.
    """
    first: dict[str, T] = {}
    others: list[T] = []
    for hit in hits:
        if first.setdefault(kin(hit), hit) is not hit and len(others) < DEPTH:
            others.append(hit)
        if len(first) == DEPTH:
            break
    return list(first.values()), others[: DEPTH - len(first)]


def _served(
    conn: sqlite3.Connection,
    layout: Layout,
    query: Query,
    found: Sequence[nearest.Neighbour],
    stale: list[int],
    deadline: float | None,
) -> Iterator[VectorHit]:
    """Yield a hit for every distinct text: its first message that may be shown."""
    served: set[str] = set()
    for at in range(0, len(found), rows.IDS_AT_ONCE):
        some = [n for n in found[at : at + rows.IDS_AT_ONCE] if n.text_hash not in served]
        ids = [near.msg_id for near in some]
        messages = {m.id: m for m in rows.load(conn, ids, layout, deadline=deadline)}
        for near in some:
            message = messages.get(near.msg_id)
            if message is None or near.text_hash in served:
                continue
            if texts.text_hash(message.text) != near.text_hash:
                stale.append(message.id)
            elif not mentions(message, query.excluded):
                served.add(near.text_hash)
                bounds = near.chunk_start, near.chunk_end
                yield VectorHit(message, near.similarity, *bounds, strength=near.similarity)
