"""A revert or an uninstall under a Hermes that goes on running."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hermes_patch import deploy
from live import Live, TwinServer, configured
from targets import Installed


@pytest.mark.parametrize("purge", [False, True])
def test_after_a_revert_a_running_hermes_sends_and_writes_nothing_of_ours(
    hermes: Installed, home: Path, purge: bool
) -> None:
    with TwinServer() as server:
        (home / "config.yaml").write_text(configured(server.url))
        with Live(hermes, home, None) as live:
            live("db = opened(); append('a', 'the garden pump leaks')")
        deploy.apply(home, hermes_python=hermes.python)
        with Live(hermes, home, home / "plugins" / "hermes_patch") as live:
            live("db = opened(); append('b', 'the quarterly invoice is late'); settle()")
            assert live("found('invoice')") == ["b"]
            deploy.revert(home, purge=purge, hermes_python=hermes.python)
            sent = len(server.texts)
            live("append('c', 'a text that stays here'); settle()")
            assert live("found('stays')") == ["c"] and len(server.texts) == sent
            assert live("ours._host.guard.failures(), failures()") == [[], []]
    conn = sqlite3.connect(home / "state.db")
    names = {row[0] for row in conn.execute("SELECT name FROM sqlite_master")}
    conn.close()
    assert ("message_embeddings" in names) is not purge


def test_no_worker_is_left_after_uninstall(hermes_019: Installed, home: Path) -> None:
    with TwinServer() as server:
        (home / "config.yaml").write_text(configured(server.url))
        deploy.apply(home, hermes_python=hermes_019.python)
        with Live(hermes_019, home, home / "plugins" / "hermes_patch") as live:
            live("db = opened(); append('a', 'the garden pump leaks')")
            live("threads = lambda: [t for t in threading.enumerate() if 'worker' in t.name]")
            live("ours.uninstall(); append('a', 'after the uninstall')")
            assert live("until(lambda: not threads(), 20)") is True
            live("ours.install(); append('a', 'after the second install'); settle()")
            assert live("db.embedding_count()") == 3
