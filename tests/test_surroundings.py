"""Profiles, read-only files, journal modes, replaced files, forks, exits and full disks."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes_patch import deploy
from hermes_patch.text import message_text, text_hash
from live import Live, Raised, TwinServer, configured, package, unprivileged
from targets import Installed

OLD = 1_600_000_000.0
BACKFILL = "from hermes_patch.cli import main; main(['backfill', '--json'])"


@pytest.fixture(scope="session")
def plugin(hermes: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is deployed for a release."""
    return package(hermes, tmp_path_factory.mktemp(hermes.target.name))


@pytest.fixture(scope="session")
def plugin_019(hermes_019: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is deployed for Hermes 0.19.0."""
    return package(hermes_019, tmp_path_factory.mktemp("hermes-0.19.0"))


@pytest.fixture
def server() -> Iterator[TwinServer]:
    with TwinServer() as running:
        yield running


def profile(folder: Path, server: TwinServer, **more: object) -> Path:
    """Make a home that uses *server*."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(configured(server.url, **more))
    return folder


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        return conn.execute(sql).fetchall()


def contents(path: Path) -> list[str]:
    return [row[0] for row in rows(path, "SELECT content FROM messages ORDER BY id")]


def embedded(path: Path) -> list[str]:
    """The texts that have a vector, checked to be the vector of that text in a known space."""
    found = rows(
        path,
        "SELECT m.content, e.text_hash, s.dims * 4 = length(e.embedding) "
        "FROM message_embeddings e LEFT JOIN messages m ON m.id = e.msg_id "
        "LEFT JOIN embedding_spaces s ON s.id = e.space_id ORDER BY e.msg_id",
    )
    assert all(text_hash(message_text(text)) == kept and good for text, kept, good in found), found
    return [text for text, _, _ in found]


# Profiles


def test_two_profiles_in_one_process_have_their_own_server_key_and_vectors(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    with TwinServer(turn=7, dims=48) as second:
        profile(home, server, key="${STUB_KEY}")
        other = profile(home / "profiles" / "work", second, key="${STUB_KEY}")
        (home / ".env").write_text("STUB_KEY=key-of-the-first\n")
        (other / ".env").write_text("STUB_KEY=key-of-the-second\n")
        with Live(hermes, home, plugin) as live:
            live("db = opened(); append('a', 'the garden pump leaks')")
            live(f"settle(); switch({str(other)!r})")
            live("two = opened(home / 'profiles/work/state.db')")
            live("append('b', 'the quarterly invoice is late', db=two); settle(two)")
            assert live("found('invoice late today', two)") == ["b"]
            assert live("found('garden pump leaks', two)") == []
            live("switch(home); append('a', 'a second word about the pump'); settle()")
            assert live("found('leaks in the garden pump')[:1]") == ["a"]
            assert live("found('quarterly invoice late')") == []
        assert embedded(home / "state.db") == contents(home / "state.db")
        assert embedded(other / "state.db") == contents(other / "state.db")
        assert rows(other / "state.db", "SELECT dims FROM embedding_spaces") == [(48,)]
        assert server.keys == {"Bearer key-of-the-first"}
        assert second.keys == {"Bearer key-of-the-second"}
        asked = {"garden pump leaks", "leaks in the garden pump", "quarterly invoice late"}
        assert not any("invoice" in text for text in server.messages if text not in asked)
        assert not any("pump" in text for text in second.messages if text not in asked)


def test_profiles_used_by_threads_at_the_same_time_are_not_mixed(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    work = """
import contextvars
def live_in(folder, word):
    switch(folder)
    mine = opened(Path(folder) / "state.db")
    for n in range(15):
        append(word, f"{word} note number {n}", db=mine)
        found(f"{word} note", mine)
    return settle(mine)
threads = [threading.Thread(target=contextvars.copy_context().run, args=(live_in, *pair))
           for pair in ((home, "kitchen"), (home / "profiles/work", "payroll"))]
[t.start() for t in threads], [t.join() for t in threads]
"""
    with TwinServer(turn=3) as second:
        profile(home, server)
        other = profile(home / "profiles" / "work", second)
        with Live(hermes_019, home, plugin_019) as live:
            live(work)
        assert len(embedded(home / "state.db")) == len(embedded(other / "state.db")) == 15
        assert all("kitchen" in text for text in server.messages)
        assert all("payroll" in text for text in second.messages)


def test_a_key_that_the_process_got_from_one_profile_is_not_sent_to_anothers_server(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with TwinServer() as second:
        other = profile(home / "profiles" / "work", second, key="${STUB_KEY}")
        (other / ".env").write_text("STUB_KEY=key-of-the-second\n")
        env = {"STUB_KEY": "key-of-the-first"}  # Hermes exports the .env of its start
        with Live(hermes_019, home, plugin_019, env=env) as live:
            live(f"switch({str(other)!r}); db = opened(home / 'profiles/work/state.db')")
            live("append('b', 'the quarterly invoice is late'); settle()")
        assert second.keys == {"Bearer key-of-the-second"}


def test_another_profiles_database_is_searched_and_never_written(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with TwinServer(turn=7) as second:
        other = profile(home / "profiles" / "work", second)
        with Live(hermes_019, other, plugin_019) as live:
            live("db = opened(); append('b', 'the quarterly invoice is late'); settle()")
            live("append('c', 'the printer on floor two jams'); settle(); db.close()")
        before, sent = (other / "state.db").read_bytes(), len(second.texts)
        with Live(hermes_019, home, plugin_019) as live:
            live("db = opened(); append('a', 'the garden pump leaks'); settle()")
            answer = live("asked('invoice', profile='work')")
            assert [r["session_id"] for r in answer["results"]] == ["b"], answer
        assert (other / "state.db").read_bytes() == before
        assert len(second.texts) == sent


def test_a_handle_that_another_profile_touched_first_still_gets_its_own_vectors(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with TwinServer(turn=7) as second:
        other = profile(home / "profiles" / "work", second)
        with Live(hermes_019, home, plugin_019) as live:
            live(f"switch({str(other)!r}); db = opened(); append('a', 'the garden pump leaks')")
            live("switch(home); append('a', 'it drips since Monday'); settle()")
        assert embedded(home / "state.db") == contents(home / "state.db")
        assert second.texts == []


# Read-only


def filled(hermes: Installed, plugin: Path, home: Path, server: TwinServer) -> None:
    """Leave a closed database with two embedded messages."""
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('disk', 'the disk ran out of room')")
        live("append('bulbs', 'three lamps were paired'); settle(); db.close()")


def test_a_database_opened_read_only_is_searched_by_meaning(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    if hermes.target.schema == 6:
        pytest.skip("SessionDB of 0.9 has no read_only")
    filled(hermes, plugin, home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(read_only=True)")
        assert live("how('the disk out of room')") == [["disk", "both"]]
        assert live("ours._host.workers.of(engine()).wake(); time.sleep(0.3); failures()") == []
        assert live("db.embedding_count()") == 2
        with pytest.raises(Raised, match="HostError: no SessionDB is open for writing"):
            live("db.store_embedding(1, 'disk', [1.0] * 64, 'the disk ran out of room')")


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_read_only_file_or_folder_changes_nothing_for_hermes_and_is_still_searched(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer, what: str, journal: str
) -> None:
    prefix = unprivileged()
    if prefix is None:
        pytest.skip("run by root, and there is no setpriv to make file permissions count")
    filled(hermes_019, plugin_019, home, server)
    with closing(sqlite3.connect(home / "state.db")) as conn:
        conn.execute(f"PRAGMA journal_mode={journal}")
    path = home / "state.db"
    if what == "folder":  # one of its own, since Hermes makes its home writable at its start
        path = retire(home, "archive")
    locked = path if what == "file" else path.parent
    usual = locked.stat().st_mode
    locked.chmod(0o444 if what == "file" else 0o555)
    try:
        plain, ours = (
            read_only_outcomes(hermes_019, home, path, package, prefix)
            for package in (None, plugin_019)
        )
    finally:
        locked.chmod(usual)
    assert ours["written"] == plain["written"]
    assert (ours["asked"] == plain["asked"]) or plain["asked"] == []
    if (what, journal) != ("folder", "WAL"):  # that one SQLite itself cannot open
        assert ours["asked"] == [["disk", "both"]]
    assert len(embedded(path)) == 2


def read_only_outcomes(
    hermes: Installed, home: Path, path: Path, package: Path | None, prefix: tuple[str, ...]
) -> dict[str, Any]:
    opened = f"db = opened({str(path)!r}"
    with Live(hermes, home, package, prefix=prefix) as live:
        return {
            "written": outcome(live, f"{opened}); append('new', 'one word more'); 'written'"),
            "asked": outcome(live, f"{opened}, read_only=True); how('the disk out of room')"),
        }


def outcome(live: Live, code: str) -> Any:
    try:
        return live(code)
    except Raised as error:
        return str(error)


def test_backfill_and_status_say_plainly_that_the_file_is_read_only(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    prefix = unprivileged()
    if prefix is None:
        pytest.skip("run by root, and there is no setpriv to make file permissions count")
    filled(hermes_019, plugin_019, home, server)
    (home / "state.db").chmod(0o444)
    try:
        backfill = told(hermes_019, plugin_019, home, prefix, "backfill")
        status = told(hermes_019, plugin_019, home, prefix, "status")
    finally:
        (home / "state.db").chmod(0o644)
    assert backfill.returncode == 1 and "readonly" in backfill.stderr.replace("-", "").lower()
    assert "Traceback" not in backfill.stderr + status.stderr
    assert status.returncode == 0 and "2 of 2 messages" in status.stdout


def told(
    hermes: Installed, plugin: Path, home: Path, prefix: tuple[str, ...], *words: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of ours under Hermes's Python."""
    code = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = hermes.environment(home, {"PYTHONPATH": str(plugin)})
    command = [*prefix, *hermes.command(code, *words, "--hermes-home", str(home))]
    return subprocess.run(
        command, env=environment, cwd=home.parent, capture_output=True, encoding="utf-8"
    )


# Journal modes

DELETE_MODE = """
import hermes_state
if hasattr(hermes_state, "apply_wal_with_fallback"):
    hermes_state.apply_wal_with_fallback = lambda *a, **k: "delete"
db = opened()
db._conn.execute("PRAGMA journal_mode=DELETE").fetchone()[0]
"""


def test_all_works_in_delete_mode(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, None) as plain:
        plain("db = opened(); append('old', 'from long ago: the boiler was changed')")
        plain(f"db._conn.execute('UPDATE messages SET timestamp = {OLD}'); db.close()")
    with Live(hermes, home, plugin) as live:
        assert live(DELETE_MODE) == "delete"
        live("append('disk', *[f'the disk number {n} ran out of room' for n in range(30)])")
        live("settle()")
        assert live("db.embedding_count()") == 30
        assert live("found('the disk ran out of room')[:1]") == ["disk"]
        live("from hermes_patch import backfill as runner, embedders")
        live(
            "made = runner.HomeDatabase(lambda: opened(), db.db_path)\n"
            "run = runner.Backfill(made, embedders.create(engine().settings, None),"
            " engine().settings)\n"
            "run.prepare(); run.run().stored"
        )
        assert live("db.embedding_count(), failures()") == [31, []]
        if hermes.target.schema != 6:  # every open of 0.9 goes back to WAL
            assert live("db._conn.execute('PRAGMA journal_mode').fetchone()[0]") == "delete"
        live("db.close()")


def test_a_search_under_way_does_not_make_an_append_fail_in_delete_mode(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    hang = """
from hermes_patch import nearest, vectors
release, inside = threading.Event(), threading.Event()
real = vectors.unpack
def slow(blob):
    if threading.current_thread().name == "hermes-patch search":
        inside.set()
        release.wait(60)
    return real(blob)
vectors.unpack = slow
nearest.accelerate = lambda conn, library: nearest.PURE_PYTHON
patience(2)  # Hermes would try for a quarter of a minute
searching = threading.Thread(target=found, args=("the disk ran out of room",))
searching.start()
inside.wait(30)
"""
    with Live(hermes, home, plugin) as live:
        assert live(DELETE_MODE) == "delete"
        live("append('disk', *[f'the disk number {n} ran out of room' for n in range(30)])")
        assert live("settle()")
        assert live(hang) is True
        try:
            assert live("append('disk', 'written while a search is under way')")
        finally:
            live("release.set(); searching.join()")
        assert live("settle(); db.embedding_count()") == 31


# A database moved or replaced


def retire(home: Path, name: str) -> Path:
    """Move the database away, as somebody does who starts afresh."""
    away = home / name
    away.mkdir()
    for file in home.glob("state.db*"):
        file.rename(away / file.name)
    return away / "state.db"


def quiet(server: TwinServer, seconds: float = 1.5) -> bool:
    """Tell whether nothing more is sent for a while."""
    before = server.requests
    time.sleep(seconds)
    return server.requests == before


def test_a_new_database_in_the_place_of_the_old_one_gets_its_own_vectors(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('a', 'the first file knows this'); settle()")
        old = retire(home, "away")
        live("new = opened(); append('b', 'the second file knows that', 'and more', db=new)")
        live("settle(new)")
        assert live("until(lambda: new.embedding_count() == 2)")
        assert live("found('that the second file knows', new)") == ["b"]
        outcome(live, "append('a', 'written into the file that was moved')")
        live("settle(new); new.close()")
        assert quiet(server)
    assert embedded(home / "state.db") == ["the second file knows that", "and more"]
    assert set(embedded(old)) <= set(contents(old))
    assert len(server.messages) <= 6


def test_a_file_replaced_before_the_first_write_is_not_written_through_the_old_handle(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('a', 'the first file knows this'); settle(); db.close()")
        live("db = opened()")
        for file in home.glob("state.db*"):
            shutil.copy(file, home / f"copy-of-{file.name}")
        old = retire(home, "away")
        for file in home.glob("copy-of-*"):
            file.rename(home / file.name.removeprefix("copy-of-"))
        with Live(hermes_019, home, None) as plain:
            plain("db = opened(); append('b', 'only the second file knows that'); db.close()")
        live("append('a', 'only the first file knows that')")
        live("settle(seconds=2)")
        assert quiet(server)
    assert set(embedded(old)) <= set(contents(old))
    assert len(server.messages) <= 3


def test_nothing_is_sent_endlessly_when_only_the_moved_file_is_open(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('a', 'the first file knows this'); settle()")
        retire(home, "away")
        with Live(hermes_019, home, None) as plain:
            plain("db = opened(); append('b', 'the second file knows that', 'and more')")
            plain("db.close()")
        live("append('a', 'written into the file that was moved')")
        live("settle(seconds=3)")
        assert quiet(server, 3.0)
        assert len(server.messages) <= 4, server.messages


def test_vectors_go_into_the_right_space_after_an_older_copy_was_restored(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    backup = home / "backup.db"
    with TwinServer(turn=7) as former:
        profile(home, former, model="former")
        with Live(hermes_019, home, plugin_019) as live:
            live("db = opened(); append('a', 'the garden pump leaks'); settle(); db.close()")
    shutil.copy(home / "state.db", backup)  # its space 1 is of the former model
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('b', 'the quarterly invoice is late'); settle(); db.close()")
        assert rows(home / "state.db", "SELECT count(*) FROM embedding_spaces") == [(2,)]
        for file in home.glob("state.db*"):
            file.unlink()
        shutil.copy(backup, home / "state.db")
        live("db = opened(); append('c', 'the printer on floor two jams'); settle()")
        assert live("until(lambda: db.embedding_count() >= 1)")
        assert live("found('printer jams again')") == ["c"]
        assert quiet(server)
    stored = rows(
        home / "state.db",
        "SELECT m.content, s.model FROM message_embeddings e JOIN messages m ON m.id = e.msg_id "
        "LEFT JOIN embedding_spaces s ON s.id = e.space_id ORDER BY m.id, s.id",
    )
    assert ("the printer on floor two jams", "stub") in stored
    assert ("the printer on floor two jams", "former") not in stored
    assert None not in {model for _, model in stored}


# Fork


CHILD = """
def in_child():
    mine = opened()
    append("child", "the child forked and wrote about turnips", db=mine)
    done = settle(mine, 20)
    result = [done, found("turnips the child wrote", mine)[:1]]
    mine.close()
    return result
forked(in_child)
"""


def test_a_forked_child_appends_and_searches_and_the_parent_goes_on(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('a', 'the garden pump leaks'); settle(); found('pump leaking')")
        assert live(CHILD) == [[True, ["child"]], 0]
        live("append('b', 'the quarterly invoice is late')")
        assert live("settle(), found('invoice late today')[:1]") == [True, ["b"]]
    assert embedded(home / "state.db") == contents(home / "state.db")


def test_a_fork_while_the_worker_is_busy_hangs_nobody(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server, batchSize=1)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('a', 'the garden pump leaks'); settle(); worker.PAUSE = 0.0")
        live("append('a', *[f'busy note number {n}' for n in range(60)])")
        for _ in range(2):
            assert live(CHILD.replace("20)", "60)")) == [[True, ["child"]], 0]
        assert live("settle(), db.embedding_count()") == [True, 63]


SLOW_IMPORT = """
class Slow:
    started = threading.Event()
    def find_spec(self, name, *rest):
        if name == "httpx" and threading.current_thread() is not threading.main_thread():
            self.started.set()
            time.sleep(1.0)
sys.meta_path.insert(0, Slow())
db = opened(); append("a", "the garden pump leaks")
Slow.started.wait(5)
"""


def test_a_fork_while_our_thread_imports_a_module_hangs_nobody(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live(SLOW_IMPORT)
        assert live(CHILD) == [[True, ["child"]], 0]
        assert live("settle(), db.embedding_count()") == [True, 2]


def test_with_the_local_model_parent_and_forked_child_go_on_and_no_process_is_left_behind(
    hermes_019: Installed, home: Path
) -> None:
    deploy.apply(home, hermes_python=hermes_019.python)
    with Live(hermes_019, home, home / "plugins" / "hermes_patch") as live:
        live("db = opened(); append('a', 'the garden pump leaks')")
        assert live("settle(seconds=100), found('water drips from the pump')") == [True, ["a"]]
        assert live(CHILD.replace("20)", "60)")) == [[True, ["child"]], 0]
        live("append('b', 'the quarterly invoice is late')")
        assert live("settle(seconds=60), found('is the invoice late?')[:1]") == [True, ["b"]]
        own = f"/proc/{live.process.pid}/task/{live.process.pid}/children"
        models = Path(own).read_text().split() if Path(own).exists() else []
        assert live.end() == 0 and "Traceback" not in live.stderr
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in models) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in models)
    assert embedded(home / "state.db") == contents(home / "state.db")


def is_running(pid: str) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


# Exit


def test_a_process_with_work_pending_ends_promptly_and_the_next_one_finishes_it(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("worker.DEBOUNCE = 60.0; worker.FLUSH_SECONDS = 0.0")
        live("db = opened(); append('a', *[f'pump number {n} leaks' for n in range(60)])")
        started = time.monotonic()
        assert live.end() == 0
        assert time.monotonic() - started < 20
        assert "Traceback" not in live.stderr
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('a', 'one more'); settle()")
    assert len(embedded(home / "state.db")) == 61


@pytest.mark.parametrize("closing_first", [True, False])
def test_a_process_with_a_hanging_server_ends_promptly_and_quietly(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer, closing_first: bool
) -> None:
    profile(home, server)
    server.mode = "hang"
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('a', *[f'pump number {n} leaks' for n in range(20)])")
        assert server.received.wait(30)
        live("db.close()" if closing_first else "None")
        started = time.monotonic()
        assert live.end() == 0
        assert time.monotonic() - started < 20
        assert "Traceback" not in live.stderr and "Fatal" not in live.stderr
    server.mode = "fine"
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('a', 'one more'); settle()")
    assert len(embedded(home / "state.db")) == 21


# A full disk


FULL = """
pages = db._conn.execute("PRAGMA page_count").fetchone()[0]
free = db._conn.execute("PRAGMA freelist_count").fetchone()[0]
db._conn.execute(f"PRAGMA max_page_count = {pages + max(0, 2 - free)}")
"""


def test_a_full_disk_costs_vectors_only_and_is_made_up_for(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server, batchSize=64)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('a', 'the garden pump leaks'); settle()")
        live("real = worker.Worker._attempt; hold = threading.Event()")
        live("worker.Worker._attempt = lambda self: (hold.wait(60), real(self))[1]")
        # Whether a message still fits is Hermes's own matter: as many as there is room for.
        live("append('a', *[f'pump number {n} leaks ' + 'x' * 40 for n in range(40)])")
        live(FULL)
        live("hold.set()")
        live("ours._host.workers.of(engine()).wake()")
        found = live("until(failures)")
        assert any("full" in failure["message"] for failure in found), found
        assert live("append('a', 'a short one')")
        assert live("count('SELECT count(*) FROM messages')") == 42
        assert set(live("found('garden pump leaking')")) == {"a"}
        live("db._conn.execute('PRAGMA max_page_count = 1000000')")
        live("settle()")
        assert live("until(lambda: db.embedding_count() == 42)"), live("failures()")
        assert live("count('PRAGMA integrity_check')") == "ok"
        over = "all(failure['over'] for failure in failures())"
        assert live(f"until(lambda: {over})") is True
