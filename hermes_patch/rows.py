"""Messages as our legs read them, and rows in the shape the host's search returns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import text as texts
from . import units
from .layout import Filters, Layout
from .nearest import check_time
from .query import fold
from .units import Scorer

KEYS = (
    "id",
    "session_id",
    "role",
    "snippet",
    "timestamp",
    "tool_name",
    "source",
    "model",
    "session_started",
    "context",
)
"""The keys of a host row, in the host's order."""

SNIPPET_CHARS = 300
PASSAGE_CHARS = 600
"""Of a hit by meaning: nobody knows which words of the passage made it one."""
CONTEXT_CHARS = 200
IDS_AT_ONCE = 50
"""How many messages are in memory at once, of those that are read one after the other."""
ADJACENT = 50
"""How far apart two messages that follow one another may have been stored."""
# The plus has SQLite look at the few rows between, not at the whole conversation.
_SPOKEN_BETWEEN = (
    "SELECT 1 FROM messages WHERE id > ? AND id < ? AND +session_id = ? "
    "AND role IN ('user', 'assistant') AND length(content) > 0 LIMIT 1"
)
_BOUNDARIES = "\n。！？；!?;.，, "


@dataclass(frozen=True)
class Message:
    """A message with what its row needs; ``text`` holds its words, ``tools`` its tool calls."""

    id: int
    session_id: str
    role: str
    text: str = field(repr=False)
    tools: str = field(repr=False)
    timestamp: float
    tool_name: str | None
    source: str
    model: str | None
    session_started: float

    @property
    def searchable(self) -> str:
        """Everything the host's full-text tables hold of the message."""
        return f"{self.text} {self.tools}" if self.tools else self.text


def load(
    conn: sqlite3.Connection,
    ids: Iterable[int],
    layout: Layout,
    filters: Filters | None = None,
    deadline: float | None = None,
) -> Iterator[Message]:
    """Yield the messages of *ids* that pass *filters* (all for None), roughly in that order.

    No read is under way while the caller works: in DELETE mode an append would wait for it.

    Raises:
        BudgetExceeded: after *deadline*, a value of ``time.monotonic()``.
    """
    clauses, params = filters.where(layout) if filters is not None else ([], [])
    tools = "m.tool_calls" if "tool_calls" in layout.message_columns else "NULL"
    wanted = list(ids)
    for at in range(0, len(wanted), IDS_AT_ONCE):
        check_time(deadline)
        some = wanted[at : at + IDS_AT_ONCE]
        where = " AND ".join([f"m.id IN ({','.join('?' * len(some))})", *clauses])
        cursor = conn.execute(
            f"SELECT m.id, m.session_id, m.role, m.content, m.tool_name, {tools}, m.timestamp, "
            "s.source, s.model, s.started_at FROM messages m JOIN sessions s "
            f"ON s.id = m.session_id WHERE {where}",
            [*some, *params],
        )
        yield from map(_message, cursor.fetchall())


def _message(row: Sequence[Any]) -> Message:
    msg_id, session_id, role, content, tool_name, tool_calls, timestamp, *session = row
    tools = " ".join(part for part in (tool_name, tool_calls) if isinstance(part, str))
    text = texts.message_text(content)
    return Message(msg_id, session_id, role, text, tools, timestamp, tool_name, *session)


def host_row(conn: sqlite3.Connection, message: Message, snippet: str) -> dict[str, Any]:
    """Return *message* as the host's search would, with the ten keys in its order."""
    return {
        "id": message.id,
        "session_id": message.session_id,
        "role": message.role,
        "snippet": snippet,
        "timestamp": message.timestamp,
        "tool_name": message.tool_name,
        "source": message.source,
        "model": message.model,
        "session_started": message.session_started,
        "context": context(conn, message),
    }


def context(conn: sqlite3.Connection, message: Message) -> list[dict[str, str]]:
    """Return the message before, the message itself and the one after, 200 characters each."""
    place = (message.session_id, message.timestamp, message.id)
    before = _neighbour(conn, place, "<", "DESC")
    after = _neighbour(conn, place, ">", "ASC")
    return [*before, _preview(message.role, message.text), *after]


def _neighbour(
    conn: sqlite3.Connection, place: tuple[str, float, int], side: str, order: str
) -> list[dict[str, str]]:
    row = conn.execute(
        "SELECT role, content FROM messages WHERE session_id = ? "
        f"AND (timestamp, id) {side} (?, ?) ORDER BY timestamp {order}, id {order} LIMIT 1",
        place,
    ).fetchone()
    return [_preview(row[0], texts.message_text(row[1]))] if row else []


def _preview(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text[:CONTEXT_CHARS]}


def adjacent(conn: sqlite3.Connection, messages: Iterable[Message]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of ids of *messages* that follow one another in their conversation.

    Between them there may be tool output and calls, but no words of the user or the agent.
    """
    last: dict[str, int] = {}
    for message in sorted(messages, key=lambda m: m.id):
        before = last.get(message.session_id)
        last[message.session_id] = message.id
        if before is not None and message.id - before <= ADJACENT:
            between = (before, message.id, message.session_id)
            if message.id - before == 1 or not conn.execute(_SPOKEN_BETWEEN, between).fetchone():
                yield before, message.id


def roots(conn: sqlite3.Connection, sessions: Mapping[int, str]) -> dict[int, str]:
    """Return the lineage of every message: the session at the top of its session's parents.

    ``sessions`` gives the session of each message id. A circle of parents ends where it
    closes, as in the host's tool.
    """
    known: dict[str, str] = {}
    for session_id in sessions.values():
        if session_id not in known:
            known[session_id] = _root(conn, session_id)
    return {msg_id: known[session_id] for msg_id, session_id in sessions.items()}


def _root(conn: sqlite3.Connection, session_id: str) -> str:
    seen = set()
    while session_id not in seen:
        seen.add(session_id)
        row = conn.execute(
            "SELECT parent_session_id FROM sessions WHERE id = ?", (session_id,)
        ).fetchone()
        if row is None or not row[0]:
            break
        session_id = row[0]
    return session_id


def passage(text: str, start: int, end: int) -> str:
    """Return at most :data:`PASSAGE_CHARS` characters of a chunk, cut at a boundary."""
    part = text[start:end] if 0 <= start < end <= len(text) else text
    part = part.strip()
    if len(part) > PASSAGE_CHARS:
        part = f"{part[: _cut(part, PASSAGE_CHARS)].rstrip()}..."
    return f"...{part}" if start > 0 and part else part


def _cut(text: str, at: int) -> int:
    """Return the best place to cut *text* in the last third before *at*."""
    for mark in _BOUNDARIES:
        found = text.rfind(mark, at * 2 // 3, at)
        if found >= 0:
            return found + 1
    return at


def highlighted(text: str, scorer: Scorer) -> str:
    """Return the passage of *text* with most of the query's weight, matches in >>> <<<."""
    spans = _merged(
        [
            (start + at, end + at, weight)
            for at, part in units.parts(text)
            for start, end, weight in scorer.spans(fold(part))
        ]
    )
    if not spans:
        return passage(text, 0, len(text))
    start, end = _window(text, spans)
    out, at = [], start
    for left, right, _ in spans:
        if start <= left and right <= end:
            out += [text[at:left], ">>>", text[left:right], "<<<"]
            at = right
    out.append(text[at:end])
    body = "".join(out).strip()
    return f"{'...' if start else ''}{body}{'...' if end < len(text) else ''}"


def _merged(spans: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    merged: list[tuple[int, int, float]] = []
    for start, end, weight in spans:
        if merged and start <= merged[-1][1]:
            left, right, had = merged[-1]
            merged[-1] = (left, max(right, end), had + weight)
        else:
            merged.append((start, end, weight))
    return merged


def _window(text: str, spans: Sequence[tuple[int, int, float]]) -> tuple[int, int]:
    """Return the bounds of the stretch of text whose matches weigh most."""
    width = SNIPPET_CHARS * 2 // 3
    best, best_weight = 0, -1.0
    for first, (start, _, _) in enumerate(spans):
        weight = sum(w for s, e, w in spans[first : first + 40] if e <= start + width)
        if weight > best_weight:
            best, best_weight = first, weight
    anchor, anchor_end, _ = spans[best]
    start = max(0, anchor - SNIPPET_CHARS // 6)
    if start:
        start = _first_boundary(text, start, anchor)
    end = min(len(text), start + SNIPPET_CHARS)
    if end < len(text):
        end = max(start + _cut(text[start:end], end - start), anchor_end)
    return start, end


def _first_boundary(text: str, start: int, stop: int) -> int:
    for at in range(start, stop):
        if text[at] in _BOUNDARIES:
            return at + 1
    return start
