"""Fixtures shared by all tests: a real Hermes, and an empty home for it.

Over the whole run it is watched that no canary is shown; see ``canaries``.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import canaries
import targets

_PARAMS = [pytest.param(target, id=target.name) for target in targets.CI] + [
    pytest.param(target, id=target.name, marks=pytest.mark.matrix) for target in targets.MATRIX
]
provide = functools.cache(targets.provide)


@pytest.fixture(scope="session", params=_PARAMS)
def target(request: pytest.FixtureRequest) -> targets.Target:
    """A release of Hermes; the test runs once for each."""
    chosen: targets.Target = request.param
    return chosen


@pytest.fixture(scope="session")
def hermes(target: targets.Target) -> targets.Installed:
    """The release of ``target``, installed for the interpreter that runs the tests."""
    return provide(target)


@pytest.fixture(scope="session")
def hermes_019() -> targets.Installed:
    """Hermes 0.19.0, for tests of what does not depend on the release."""
    return provide(targets.CI[1])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty Hermes home."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def pytest_sessionstart() -> None:
    """Begin to watch for canaries."""
    canaries.watch.start()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a canary was shown anywhere."""
    canaries.watch.stop()
    if canaries.watch.found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which canary was seen where."""
    if canaries.watch.found:
        terminalreporter.section("a key or a text was shown", red=True, bold=True)
        for line in canaries.watch.found:
            terminalreporter.line(line, red=True)
