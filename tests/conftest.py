"""Fixtures shared by all tests: a real Hermes, and an empty home for it."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import targets

_PARAMS = [pytest.param(target, id=target.name) for target in targets.CI] + [
    pytest.param(target, id=target.name, marks=pytest.mark.matrix) for target in targets.MATRIX
]
_provide = functools.cache(targets.provide)


@pytest.fixture(scope="session", params=_PARAMS)
def target(request: pytest.FixtureRequest) -> targets.Target:
    """A release of Hermes; the test runs once for each."""
    chosen: targets.Target = request.param
    return chosen


@pytest.fixture(scope="session")
def hermes(target: targets.Target) -> targets.Installed:
    """The release of ``target``, installed for the interpreter that runs the tests."""
    return _provide(target)


@pytest.fixture(scope="session")
def hermes_019() -> targets.Installed:
    """Hermes 0.19.0, for tests of what does not depend on the release."""
    return _provide(targets.CI[1])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty Hermes home."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder
