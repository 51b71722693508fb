"""Evaluation sets: sessions to write, questions to ask, and what answers each of them.

A set is a JSON file: ``name``, ``sessions`` (``id``, ``started_at``, maybe ``title``, and
``messages`` with ``id``, ``role``, ``text``), ``queries`` (``id``, ``text``, ``gold`` message
ids, ``gold_sessions``, maybe ``category``), and maybe ``unanswerable`` (``id``, ``text``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..config_keys import kind
from ..errors import HermesPatchError

ROLES = ("user", "assistant", "tool", "system")


@dataclass(frozen=True)
class Message:
    """One message of a session."""

    id: str
    role: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class Session:
    """One conversation; ``started_at`` in seconds since 1970."""

    id: str
    started_at: float
    title: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Query:
    """A question; ``gold_sessions`` is empty for one that nothing answers."""

    id: str
    text: str = field(repr=False)
    category: str = ""
    gold: frozenset[str] = frozenset()
    gold_sessions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EvaluationSet:
    """A haystack and the questions put to it."""

    name: str
    sessions: tuple[Session, ...]
    queries: tuple[Query, ...]
    unanswerable: tuple[Query, ...] = ()

    def digest(self) -> str:
        """Return the fingerprint of all that is written: the sessions, not the questions."""
        dumped = json.dumps([asdict(session) for session in self.sessions])
        return hashlib.sha256(dumped.encode()).hexdigest()[:16]

    def messages(self) -> int:
        """Return the number of messages."""
        return sum(len(session.messages) for session in self.sessions)


def load(path: Path, limit: int | None = None) -> EvaluationSet:
    """Read and check a set; *limit* keeps the first questions of each kind.

    Raises:
        HermesPatchError: the file cannot be read or an entry is wrong; names file, entry, and
            what was expected and found.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HermesPatchError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise HermesPatchError(f"{path}: is not UTF-8 text") from None
    except ValueError as error:
        line = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise HermesPatchError(f"{path}: not valid JSON{line}") from None
    return _set(_Entry(path, "the set", data), path.stem, limit)


class _Entry:
    """One JSON object of a file and the name of its place there."""

    def __init__(self, path: Path, place: str, data: Any) -> None:
        self.path = path
        self.place = place
        if not isinstance(data, Mapping):
            raise self.wrong("", "an object", kind(data))
        self.data = data

    def wrong(self, key: str, expected: str, found: str) -> HermesPatchError:
        place = f"{self.place}.{key}" if key else self.place
        return HermesPatchError(f"{self.path}: {place}: expected {expected}, found {found}")

    def text(self, key: str, *, blank: bool = False) -> str:
        value = self.data.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "text", kind(value))
        if not blank and not value.strip():
            raise self.wrong(key, "text", "blank text")
        return value

    def time(self, key: str) -> float:
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "seconds since 1970", kind(value))
        if not math.isfinite(value):
            raise self.wrong(key, "seconds since 1970", str(value))
        return float(value)

    def role(self, key: str) -> str:
        value = self.text(key)
        if value not in ROLES:
            raise self.wrong(key, f"one of {', '.join(ROLES)}", repr(value))
        return value

    def entries(self, key: str, *, least: int = 1) -> list[_Entry]:
        values = self.data.get(key, [] if least == 0 else None)
        if not isinstance(values, list):
            raise self.wrong(key, "a list", kind(values))
        if len(values) < least:
            raise self.wrong(key, f"at least {least}", "an empty list")
        here = "" if self.place == "the set" else f"{self.place}."
        return [_Entry(self.path, f"{here}{key}[{n}]", value) for n, value in enumerate(values)]

    def ids(self, key: str, known: Iterable[str], what: str, *, least: int) -> frozenset[str]:
        values = self.data.get(key, [] if least == 0 else None)
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise self.wrong(key, f"a list of ids of {what}", kind(values))
        if len(values) < least:
            raise self.wrong(key, f"at least one id of {what}", "an empty list")
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise self.wrong(key, f"ids of {what} of this set", repr(unknown[0]))
        return frozenset(values)


def _set(entry: _Entry, stem: str, limit: int | None) -> EvaluationSet:
    name = entry.text("name") if entry.data.get("name") is not None else stem
    places = entry.entries("sessions")
    sessions = tuple(map(_session, places))
    _unique(places, [session.id for session in sessions])
    messages = [message for place in places for message in place.entries("messages")]
    _unique(messages, [message.text("id") for message in messages])
    known = {session.id: {m.id for m in session.messages} for session in sessions}
    asked = entry.entries("queries")
    hopeless = entry.entries("unanswerable", least=0)
    _unique([*asked, *hopeless], [place.text("id") for place in [*asked, *hopeless]])
    return EvaluationSet(
        name=name,
        sessions=sessions,
        queries=tuple(_query(place, known) for place in asked)[:limit],
        unanswerable=tuple(_hopeless(place) for place in hopeless)[:limit],
    )


def _session(entry: _Entry) -> Session:
    title = entry.data.get("title")
    return Session(
        id=entry.text("id"),
        started_at=entry.time("started_at"),
        title=None if title is None else entry.text("title"),
        messages=tuple(
            Message(place.text("id"), place.role("role"), place.text("text", blank=True))
            for place in entry.entries("messages")
        ),
    )


def _query(entry: _Entry, known: Mapping[str, set[str]]) -> Query:
    messages = set[str]().union(*known.values())
    return Query(
        id=entry.text("id"),
        text=entry.text("text"),
        category=_category(entry),
        gold=entry.ids("gold", messages, "messages", least=0),
        gold_sessions=entry.ids("gold_sessions", known, "sessions", least=1),
    )


def _hopeless(entry: _Entry) -> Query:
    return Query(id=entry.text("id"), text=entry.text("text"), category=_category(entry))


def _category(entry: _Entry) -> str:
    return "" if entry.data.get("category") is None else entry.text("category")


def _unique(places: list[_Entry], ids: list[str]) -> None:
    seen: dict[str, _Entry] = {}
    for place, one in zip(places, ids, strict=True):
        if one in seen:
            raise place.wrong("id", "an id of its own", f"{one!r}, as in {seen[one].place}")
        seen[one] = place
