"""The door before the dashboard's search: whatever we do, its own answer is the answer."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hermes_patch import dashboard, keystrokes
from hermes_patch.call import Call
from hermes_patch.guard import Guard

ROWS = [{"id": 1, "session_id": "host"}]
MORE = [*ROWS, {"id": 2, "session_id": "ours"}]


class Route:
    """A route of a real ASGI application, whose endpoint searches once as the dashboard's does."""

    path = dashboard.SEARCH

    def __init__(self) -> None:
        self.calls = 0
        self.fails = False
        self.app: Any = self._answer

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if self.fails:
            raise OSError("the route itself failed")
        key = keystrokes.current.get()
        assert key is not None
        call = Call(lambda *_: ROWS, None, {"query": scope["query"]})
        rows = key.meet(call, list(ROWS), lambda: None)
        body = ",".join(row["session_id"] for row in rows).encode()
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Iterator[Route]:
    """A route of the module that the dashboard's server is, with our door before it."""
    route = Route()
    module: Any = types.ModuleType("hermes_cli.web_server")
    module.app = types.SimpleNamespace(routes=[types.SimpleNamespace(path="/other"), route])
    monkeypatch.setitem(sys.modules, "hermes_cli.web_server", module)
    ours = dashboard.Dashboard(Guard())
    ours.find()
    assert ours.capabilities() == ["dashboard"]
    yield route
    ours.revert()
    assert route.app == route._answer


async def ask(route: Route, text: str = "smart*") -> bytes:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a GET has no body")

    try:
        await route.app({"type": "http", "query": text}, receive, send)
    finally:
        assert [message["type"] for message in sent][:1] == ["http.response.start"]
    assert [message["type"] for message in sent[1:]] == ["http.response.body"]
    return bytes(sent[1]["body"])


def found_by(monkeypatch: pytest.MonkeyPatch, find: Callable[..., Any]) -> None:
    monkeypatch.setattr(keystrokes.Typing, "_found", lambda _self, *args: find(*args))


def test_what_was_found_is_answered(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    found_by(monkeypatch, lambda *_: MORE)
    assert asyncio.run(ask(route)) == b"host,ours"
    assert route.calls == 2


def test_where_nothing_was_found_the_route_is_called_once(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_by(monkeypatch, lambda *_: list(ROWS))
    assert asyncio.run(ask(route)) == b"host"
    assert route.calls == 1


@pytest.mark.parametrize("nonsense", [42, None, ["x"], [{"id": 1}], "rows", [None]])
def test_nonsense_of_ours_leaves_the_answer_as_it_was(
    route: Route, monkeypatch: pytest.MonkeyPatch, nonsense: object
) -> None:
    found_by(monkeypatch, lambda *_: nonsense)
    assert asyncio.run(ask(route)) == b"host"


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, SystemExit])
def test_an_error_of_ours_leaves_the_answer_as_it_was(
    route: Route, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def broken(*_: object) -> None:
        raise error("text of a message")

    found_by(monkeypatch, broken)
    assert asyncio.run(ask(route)) == b"host"


@pytest.mark.parametrize("place", ["begin", "gave_up"])
def test_an_error_in_the_door_itself_leaves_the_answer_as_it_was(
    route: Route, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    found_by(monkeypatch, lambda *_: MORE if place == "begin" else hang())
    monkeypatch.setattr(dashboard, "HELD", 0.05)
    monkeypatch.setattr(keystrokes.Typing, place, broken)
    assert asyncio.run(ask(route)) == b"host"


def hang() -> None:
    threading.Event().wait(600)


def test_nobody_waits_again_while_one_search_hangs(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def within(seconds: float, _done: asyncio.Event) -> bool:
        waited.append(seconds)
        return False

    found_by(monkeypatch, lambda *_: hang())
    monkeypatch.setattr(dashboard, "_within", within)
    assert asyncio.run(ask(route)) == b"host"
    assert waited[0] == dashboard.HELD
    waited.clear()
    for n in range(2 * keystrokes.MOST_THREADS):
        assert asyncio.run(ask(route, f"smart{n}*")) == b"host"
    assert waited == []
    ours = [t for t in threading.enumerate() if t.name == "hermes-patch typing"]
    assert len(ours) <= keystrokes.MOST_THREADS + 6  # those that other tests left hanging


def test_a_newer_query_ends_the_wait_for_the_older(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def find(key: keystrokes.Keystroke, _in_burst: bool) -> Any:
        if key.text == "newer*":
            return MORE
        begun.set()
        return list(ROWS) if key.replaced.wait(60) else MORE

    found_by(monkeypatch, find)
    monkeypatch.setattr(dashboard, "HELD", 60.0)

    async def both() -> tuple[bytes, bytes]:
        older = asyncio.create_task(ask(route, "older*"))
        while not begun.is_set():
            await asyncio.sleep(0)
        return await ask(route, "newer*"), await older

    assert asyncio.run(both()) == (b"host,ours", b"host")


def test_an_error_of_the_route_comes_out_as_it_is(route: Route) -> None:
    route.fails = True
    with pytest.raises(OSError, match="the route itself failed"):
        asyncio.run(ask(route))
    assert route.calls == 1


def test_a_route_that_fails_when_it_is_called_again_has_answered_already(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(*_: object) -> Any:
        route.fails = True
        return MORE

    found_by(monkeypatch, find)
    assert asyncio.run(ask(route)) == b"host"


def test_queries_soon_after_one_another_or_after_an_answer_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    bursts: list[bool] = []
    found_by(monkeypatch, lambda _key, in_burst: bursts.append(in_burst))
    typing = keystrokes.Typing(Guard(), clock=lambda: now[0])

    def ask_at(seconds: float, answered: float) -> None:
        now[0], done = seconds, threading.Event()
        assert typing.begin(keystrokes.Keystroke(release=done.set))
        assert done.wait(30)
        now[0] = answered
        typing.answered()

    ask_at(100.0, 100.6)  # was waited for
    ask_at(100.7, 100.8)  # of a client that sends one as soon as it has the answer to the other
    ask_at(101.3, 101.3)
    ask_at(101.4, 101.4)
    assert bursts == [False, True, False, True]


def test_short_queries_say_nothing_yet() -> None:
    said = [keystrokes.says_something(text) for text in ("", "a", "ab", "abc", "系", "系统")]
    assert said == [False, False, False, True, False, True]


def test_without_a_dashboard_nothing_is_patched() -> None:
    ours = dashboard.Dashboard(Guard())
    ours.find()
    assert ours.capabilities() == []
