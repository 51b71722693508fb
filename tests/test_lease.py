from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import PlainDatabase
from hermes_patch import lease

CODE = "from hermes_patch import lease; print(lease.new_owner('backfill'))"


@pytest.fixture
def database(tmp_path: Path) -> PlainDatabase:
    return PlainDatabase(tmp_path / "state.db")


@pytest.fixture(scope="module")
def dead() -> str:
    """The name that a process gave itself which is no more."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_one_owner_at_a_time(database: PlainDatabase) -> None:
    first, second = lease.new_owner(), lease.new_owner("backfill")
    assert lease.acquire(database.conn, first, 30.0, 100.0)
    assert not lease.acquire(database.conn, second, 30.0, 110.0)
    assert lease.acquire(database.conn, first, 30.0, 120.0)
    assert not lease.acquire(database.conn, second, 30.0, 149.0)
    assert lease.acquire(database.conn, second, 30.0, 150.0)


def test_only_its_owner_lets_go(database: PlainDatabase) -> None:
    first, second = lease.new_owner(), lease.new_owner()
    lease.acquire(database.conn, first, 30.0, 100.0)
    lease.release(database.conn, second)
    assert lease.holder(database.conn, 110.0) == first
    lease.release(database.conn, first)
    assert lease.holder(database.conn, 110.0) is None


def test_a_dead_process_of_this_machine_holds_nothing(database: PlainDatabase, dead: str) -> None:
    assert dead.startswith("backfill-")
    assert lease.acquire(database.conn, dead, 30.0, 100.0)
    assert lease.holder(database.conn, 101.0) is None
    assert lease.acquire(database.conn, lease.new_owner(), 30.0, 101.0)


def test_a_process_of_another_machine_holds_it_until_its_time_is_over(
    database: PlainDatabase, dead: str
) -> None:
    elsewhere = dead.rpartition("@")[0] + "@another-machine"
    lease.acquire(database.conn, elsewhere, 30.0, 100.0)
    assert not lease.acquire(database.conn, lease.new_owner(), 30.0, 101.0)
    assert lease.acquire(database.conn, lease.new_owner(), 30.0, 131.0)


@pytest.mark.parametrize("owner", ["", "killed", "12", "backfill-x-y@z", f"{os.getpid()}-ab"])
def test_a_name_that_is_not_ours_counts_as_alive(owner: str) -> None:
    assert not lease.is_dead(owner)
