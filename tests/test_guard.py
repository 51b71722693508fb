from __future__ import annotations

import contextvars
import logging
import threading

import pytest

from hermes_patch import guard
from hermes_patch.errors import BudgetExceeded, EmbedderUnavailable
from hermes_patch.guard import Guard, run_within


def fail() -> str:
    raise ValueError("quotes the secret text of a message")


def test_a_failure_gives_the_default() -> None:
    assert Guard().run("search", fail, "host rows") == "host rows"


def test_interrupts_are_not_swallowed() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard().run("search", interrupt, None)


def test_one_line_is_logged_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    watched = Guard()
    with caplog.at_level(logging.DEBUG, logger="hermes_patch"):
        for _ in range(50):
            watched.run("search", fail, None)
            watched.run("tool", fail, None)
    assert len(caplog.records) == 2
    assert all(record.exc_info is None for record in caplog.records)


def test_a_foreign_error_is_shown_by_type_only(caplog: pytest.LogCaptureFixture) -> None:
    watched = Guard()
    watched.run("search", fail, None)
    assert "secret" not in caplog.text
    assert watched.failures()[0].message == "ValueError"


def test_our_own_message_is_shown() -> None:
    watched = Guard()
    watched.note("query", EmbedderUnavailable("no answer from 127.0.0.1:9"))
    assert watched.failures()[0].message == "no answer from 127.0.0.1:9"


def test_failures_in_a_row_open_the_breaker_and_time_closes_it() -> None:
    now = [0.0]
    watched = Guard(ticks=lambda: now[0])
    calls = []

    def work() -> None:
        calls.append(1)
        raise ValueError

    for _ in range(10):
        watched.run("search", work, None)
    assert len(calls) == guard.OPEN_AFTER
    now[0] += guard.OPEN_SECONDS[0] + 1
    watched.run("search", work, None)
    assert len(calls) == guard.OPEN_AFTER + 1


def test_a_success_forgets_the_failures_in_a_row() -> None:
    watched = Guard()
    for _ in range(guard.OPEN_AFTER - 1):
        watched.run("search", fail, None)
    watched.run("search", lambda: None, None)
    watched.run("search", fail, None)
    assert not watched.is_open("search")


def test_work_over_its_budget_is_given_up() -> None:
    release = threading.Event()
    with pytest.raises(BudgetExceeded):
        run_within(0.05, lambda: release.wait(30), "query")
    release.set()


def test_work_in_time_returns_its_result_and_raises_its_error() -> None:
    assert run_within(10, lambda: 7, "query") == 7
    with pytest.raises(ZeroDivisionError):
        run_within(10, lambda: 1 // 0, "query")


def test_work_sees_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("profile")
    variable.set("work")
    assert run_within(10, variable.get, "query") == "work"
