"""A pytest plugin that patches the Hermes under test: ``pytest -p patched_run``.

``HERMES_PATCH_TEST_SETTINGS`` holds the memorySearch block as JSON. Every database counts as
one of the profile's own, the worker does not wait for quiet, and a write waits a moment for it:
Hermes's tests then look at databases that the worker has written to. A line of counts is
appended to ``HERMES_PATCH_TEST_COUNTS``.
"""

from __future__ import annotations

import collections
import functools
import json
import os
from typing import Any

WAIT_SECONDS = 0.25
counts: collections.Counter[str] = collections.Counter()


def _counted(owner: Any, name: str, what: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def counting(*args: Any, **kwargs: Any) -> Any:
        counts[what] += 1
        return original(*args, **kwargs)

    setattr(owner, name, counting)


def _waiting(worker: Any) -> None:
    wake = worker.wake

    def waking(self: Any) -> None:
        counts["wakes"] += 1
        wake(self)
        self.idle.wait(WAIT_SECONDS)

    worker.wake = waking


def pytest_sessionstart() -> None:
    """Patch before the first test runs; conftest files are loaded by then."""
    import hermes_patch
    from hermes_patch import config, engine, recall, worker, writes

    settings = config.parse(json.loads(os.environ["HERMES_PATCH_TEST_SETTINGS"]))
    config.load_inside_hermes = lambda: settings
    worker.DEBOUNCE = 0.0
    original = engine.Engine.__init__

    @functools.wraps(original)
    def owning(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "owned": True})

    engine.Engine.__init__ = owning  # type: ignore[method-assign]
    _counted(recall, "widen", "searches")
    _waiting(worker.Worker)
    _counted(writes, "put_all", "batches")
    status = hermes_patch.install()
    assert status["active"], status


def pytest_sessionfinish() -> None:
    """Tell what the patch did in this process."""
    import hermes_patch

    for failure in hermes_patch._host.guard.failures():  # type: ignore[union-attr]
        counts[f"failure: {failure.kind}"] += failure.count
    with open(os.environ["HERMES_PATCH_TEST_COUNTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(counts) + "\n")
