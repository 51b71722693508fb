"""The search box of Hermes's dashboard: hits by meaning, without a wait in its event loop.

Up to 0.20 the dashboard searches the database on its event loop. So nothing of ours runs
there: the route of the search is called, what it answered is kept while a thread of ours looks
for more, and where that finds something the route is called again, and gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .guard import Guard
from .keystrokes import Keystroke, Typing, current
from .patching import Patch, PatchSet

SEARCH = "/api/sessions/search"
HELD, HELD_AT_START = 1.0, 3.0
"""Seconds that an answer is held back at most until hits by meaning are there; the local model
may take longer to start, which it does once in a while."""
_LOOKS = 200
"""How often the route is looked for, while the dashboard's module is still being imported."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Dashboard:
    """Our presence in the dashboard of this process, if it is one."""

    def __init__(self, guard: Guard) -> None:
        self._typing = Typing(guard)
        self._patches = PatchSet()
        self._looks = _LOOKS

    def find(self) -> None:
        """Stand before the route of the search, once it is there; cheap where it is not."""
        if self._patches.active or self._looks <= 0:
            return
        module = sys.modules.get("hermes_cli.web_server")
        if module is None:
            return
        self._looks -= 1
        for route in getattr(getattr(module, "app", None), "routes", ()):
            if getattr(route, "path", None) == SEARCH and callable(getattr(route, "app", None)):
                self._patches.apply([Patch(route, "app", self._door, "dashboard")])
                return

    def revert(self) -> list[str]:
        """Take the route back; returns what lies under foreign patches."""
        buried = self._patches.revert()
        self._patches = PatchSet()
        return buried

    def after_fork(self, guard: Guard) -> None:
        """In a forked child: locks and threads stayed in the parent."""
        self._typing = Typing(guard)
        self._patches.after_fork()

    def capabilities(self) -> list[str]:
        """Return ``["dashboard"]`` where the route was found, else nothing."""
        return list(self._patches.capabilities())

    def _door(self, original: App) -> App:
        patches = self._patches

        @functools.wraps(original)
        async def search(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            if not patches.active:
                await original(scope, receive, send)
                return
            key = Keystroke()
            answer = _Answer()
            token = current.set(key)
            try:
                await original(dict(scope), receive, answer.keep)
            except BaseException:
                await answer.replay(send)
                raise
            finally:
                current.reset(token)
            if key.search is not None and answer.is_fine:
                with contextlib.suppress(Exception):
                    answer = await self._widened(key, original, scope, receive) or answer
                self._typing.answered()
            await answer.replay(send)

        return search

    async def _widened(
        self, key: Keystroke, original: App, scope: MutableMapping[str, Any], receive: Receive
    ) -> _Answer | None:
        """Return the route's answer with what was found by meaning, None where nothing was."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def release() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

        key.release = release
        if not self._typing.begin(key):
            return None
        if not await _within(HELD, done):
            more = HELD_AT_START - HELD if key.is_starting else 0.0
            if not await _within(more, done):
                self._typing.gave_up(key)
        if key.found is None:
            return None
        answer = _Answer()
        token = current.set(key)
        try:
            await original(dict(scope), receive, answer.keep)
        finally:
            current.reset(token)
        return answer if answer.is_fine else None


async def _within(seconds: float, done: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), seconds)
    return done.is_set()


class _Answer:
    """What a route sent, kept until it is known whether it is the last word."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    @property
    def is_fine(self) -> bool:
        """True for a complete answer with status 200."""
        first, last = (self._messages[:1] or [{}])[0], (self._messages[-1:] or [{}])[0]
        return first.get("status") == 200 and not last.get("more_body", False)

    async def keep(self, message: Message) -> None:
        """Stand in for ``send``."""
        self._messages.append(message)

    async def replay(self, send: Send) -> None:
        """Send everything."""
        for message in self._messages:
            await send(message)
