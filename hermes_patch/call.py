"""One call of the host's ``search_messages``, and how to ask it again."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import layout, search
from .engine import own_work
from .rows import KEYS

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Call:
    """One call of ``search_messages``: the host's method, its handle and its arguments.

    ``reopen`` where the handle may be closed before all is asked of it.
    """

    original: Callable[..., Rows]
    handle: Any
    arguments: dict[str, Any] = field(repr=False)
    reopen: bool = False

    @classmethod
    def bind(
        cls, original: Callable[..., Rows], handle: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Call:
        """Name the arguments by the host's own signature."""
        bound = inspect.signature(original).bind(handle, *args, **kwargs)
        bound.apply_defaults()
        named = dict(list(bound.arguments.items())[1:])
        named.update(named.pop("kwargs", {}))
        return cls(original, handle, named)

    def request(self) -> search.Request:
        """Return the call in our terms."""
        get = self.arguments.get
        filters = layout.Filters(
            source_filter=get("source_filter"),
            exclude_sources=get("exclude_sources"),
            role_filter=get("role_filter"),
            include_inactive=bool(get("include_inactive")),
            after_ts=get("after_ts"),
            before_ts=get("before_ts"),
        )
        return search.Request(
            query=get("query") or "",
            filters=filters,
            limit=int(get("limit", 20)),
            offset=int(get("offset", 0)),
            sort=get("sort"),
            fields=get("fields"),
        )

    def widened(self, rows: Rows) -> Rows:
        """Return the host's rows from offset 0, with what the fusion reads of them.

        *rows* are what it gave; they are asked for again only where they are not that already.
        """
        fields, offset = self.arguments.get("fields"), int(self.arguments.get("offset") or 0)
        if offset or fields is None:
            return self._again(KEYS, offset) if offset else rows
        read = {"id", "session_id", *(["timestamp"] if self.request().order else [])}
        if read <= set(fields):
            return rows
        # The host runs a query for each context, so that is not asked for a second time.
        found = self._again({*fields, *read} - {"context"}, 0)
        return _joined(rows, found) or self._again({*fields, *read}, 0)

    def _again(self, fields: Collection[str], offset: int) -> Rows:
        """Ask the host once more: from 0 on, with *fields* where it lets one choose."""
        changed = dict(self.arguments)
        if int(changed["limit"]) >= 0:  # a negative one is none
            changed["limit"] = int(changed["limit"]) + offset
        changed["offset"] = 0
        if "fields" in changed:
            changed["fields"] = [key for key in KEYS if key in fields]
        token = own_work.set(True)
        try:
            with self._live() as handle:
                return self.original(handle, **changed)
        finally:
            own_work.reset(token)

    @contextlib.contextmanager
    def _live(self) -> Iterator[Any]:
        if not self.reopen:
            yield self.handle
            return
        with contextlib.closing(type(self.handle)(self.handle.db_path, read_only=True)) as handle:
            yield handle


def _joined(rows: Rows, found: Rows) -> Rows | None:
    """Return *rows* with what *found* has besides; None if they are not the same messages."""
    pairs = list(zip(rows, found, strict=False))
    same = len(rows) == len(found) and all(
        row[key] == other[key] for row, other in pairs for key in row if key in other
    )
    return [{**other, **row} for row, other in pairs] if same else None
