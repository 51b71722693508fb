"""Getting every vector that can be had out of a server that refuses some batches.

A refused batch is halved until the culprit stands alone or all of it has passed; what a
server can take at once is remembered. Waiting is bounded, and a text is only blamed while
the server is known to serve others.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from ..errors import EmbedderError, EmbedderRefused, EmbedderUnavailable
from .base import PROBE_TEXT, UNTRIED, Item
from .protocol import Busy, Failed, Miscounted, Rejected, TimedOut

MAX_BYTES = 1_000_000
"""Texts in one request, in bytes of UTF-8."""
BUSY_RETRIES = 3
RETRIES = 2
LONGEST_SLEEP = 60.0


class BatchLimit:
    """How many texts a server takes in one request. Thread-safe."""

    def __init__(self, configured: int) -> None:
        self._lock = threading.Lock()
        self._most = configured
        self._patient = configured

    @property
    def size(self) -> int:
        """The number of texts worth sending at once."""
        return min(self._most, self._patient)

    def learn(self, size: int) -> None:
        """Remember for good that more than *size* texts are refused."""
        with self._lock:
            self._most = max(1, min(self._most, size))

    def slow_down(self, size: int) -> None:
        """Ask for *size* texts from now on, since more did not come in time."""
        with self._lock:
            self._patient = max(1, min(self._patient, size))

    def speed_up(self, size: int) -> None:
        """Try twice *size* texts next time, since those came long before their time."""
        with self._lock:
            if size >= self._patient:
                self._patient = min(self._most, 2 * size)


class Run:
    """One call of ``embed_documents``: some texts, asked for in as many requests as it takes.

    ``ask`` makes one request and raises Rejected, Failed, TimedOut, Busy or another
    EmbedderError; ``one_by_one`` tells whether a request may hold one text only, ``pause``
    how many seconds lie between two of those, and ``quick`` how soon an answer has to come
    for larger batches to be tried again.
    """

    def __init__(
        self,
        ask: Callable[[list[str]], list[Item]],
        limit: BatchLimit,
        wait: Callable[[float], None],
        *,
        one_by_one: Callable[[], bool],
        pause: float = 0.0,
        quick: float = 0.0,
    ) -> None:
        self._request = ask
        self._limit = limit
        self._wait = wait
        self._one_by_one = one_by_one
        self._pause = pause
        self._quick = quick
        self._requests = 0
        self._timeouts = 0
        self._healthy = self._was_healthy = False

    def items(self, texts: Sequence[str]) -> list[Item]:
        """Return one Item for every text; raises EmbedderError when nothing was learnt."""
        self._texts = texts
        self._items: list[Item | None] = [None if t.strip() else _EMPTY for t in texts]
        todo = [index for index, item in enumerate(self._items) if item is None]
        rest = Item(None)
        try:
            self._embed(todo)
        except EmbedderError as error:
            if all(self._items[index] is None for index in todo):
                raise
            rest = Item(None, f"{UNTRIED}{error}")
        return [item or rest for item in self._items]

    def _embed(self, part: list[int]) -> int:
        """Embed *part*; return the largest request that passed, 0 if a text was at fault."""
        passed = []
        while part:
            size = self._first(part)
            passed.append(self._piece(part[:size]))
            part = part[size:]
        return 0 if 0 in passed else max(passed, default=0)

    def _first(self, part: list[int]) -> int:
        """Return how many of *part* fit into one request."""
        if self._one_by_one():
            return 1
        size = total = 0
        for index in part[: self._limit.size]:
            total += len(self._texts[index].encode("utf-8"))
            if size and total > MAX_BYTES:
                break
            size += 1
        return size

    def _piece(self, piece: list[int]) -> int:
        try:
            items = self._ask_patiently([self._texts[index] for index in piece])
        except (Rejected, Failed, Miscounted) as error:
            if len(piece) > 1:
                return self._halves(piece, learn=isinstance(error, Rejected))
            self._blame(piece[0], error)
            return 0
        except TimedOut as error:
            if len(piece) > 1:
                return self._smaller(piece, error)
            self._blame(piece[0], error)
            return 0
        for index, item in zip(piece, items, strict=True):
            self._items[index] = item
        return len(piece)

    def _halves(self, piece: list[int], *, learn: bool) -> int:
        middle = len(piece) // 2
        passed = (self._embed(piece[:middle]), self._embed(piece[middle:]))
        if 0 in passed:
            return 0
        if learn:
            self._limit.learn(max(passed))
        return max(passed)

    def _smaller(self, piece: list[int], error: TimedOut) -> int:
        self._timeouts += 1
        self._limit.slow_down(len(piece) // 2)
        if self._timeouts > RETRIES:
            raise error
        return self._embed(piece)

    def _blame(self, index: int, error: EmbedderError) -> None:
        """Record that a text has no vector, once it is known not to be the server's fault."""
        if not self._was_healthy:
            try:
                self._ask([PROBE_TEXT])
            except Rejected as refusal:
                raise EmbedderRefused(
                    f"{refusal} to a short sentence; check the model, dimensions and account"
                ) from None
        self._items[index] = Item(None, str(error), permanent=isinstance(error, Rejected))

    def _ask_patiently(self, texts: list[str]) -> list[Item]:
        busy = broken = 0
        while True:
            try:
                return self._ask(texts)
            except Busy as error:
                if busy == BUSY_RETRIES:
                    raise
                self._wait(_pause_after(error, busy))
                busy += 1
            except (Failed, TimedOut):
                # A batch is made smaller instead; a text of its own gets a second chance,
                # and the probe sentence is the third.
                if len(texts) > 1 or broken:
                    raise
                self._wait(_backoff(0))
                broken += 1
            except EmbedderUnavailable as error:
                if broken == RETRIES:
                    raise
                self._wait(_pause_after(error, broken))
                broken += 1

    def _ask(self, texts: list[str]) -> list[Item]:
        if self._requests and self._one_by_one():
            self._wait(self._pause)
        self._requests += 1
        self._was_healthy, self._healthy = self._healthy, False
        started = time.monotonic()
        items = self._request(texts)
        self._healthy = True
        if not self._timeouts and time.monotonic() - started < self._quick:
            self._limit.speed_up(len(texts))
        return items


_EMPTY = Item(None, "empty text", permanent=True)


def _backoff(attempt: int) -> float:
    return float(2**attempt * random.uniform(0.5, 1.5))


def _pause_after(error: EmbedderUnavailable, attempt: int) -> float:
    asked = error.retry_after
    return _backoff(attempt) if asked is None else min(asked, LONGEST_SLEEP)
