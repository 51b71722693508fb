"""What can go wrong with the store, brought about: on real Hermes where that matters."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import CountingEmbedder, PlainDatabase, unit
from hermes_patch import backfill as runner
from hermes_patch import layout, nearest, spaces, vectors
from hermes_patch.config import Settings
from hermes_patch.embedders.base import Description, Item
from hermes_patch.errors import VectorError
from hermes_patch.indexer import Indexer
from hermes_patch.layout import Filters
from hermes_patch.text import text_hash
from live import Live, Raised, TwinServer, package
from stub_server import vector as stub_vector
from targets import Installed
from test_nearest import python_with_extensions
from test_surroundings import OLD, contents, embedded, profile, rows, told

TIERS = [nearest.PURE_PYTHON, nearest.SQLITE_VEC]


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


@pytest.fixture
def database(tmp_path: Path) -> PlainDatabase:
    return PlainDatabase(tmp_path / "state.db")


def from_outside(home: Path, *statements: str) -> None:
    """Run SQL in a process of its own, with plain sqlite3 and nothing of ours."""
    code = (
        "import json, sqlite3, sys\n"
        "conn = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\n"
        "for statement in json.loads(sys.argv[2]): conn.execute(statement)\n"
        "conn.close()\n"
    )
    command = [sys.executable, "-I", "-c", code, str(home / "state.db"), json.dumps(statements)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def history(hermes: Installed, home: Path, *texts: str) -> None:
    """Write messages from long before the patch, as Hermes alone."""
    with Live(hermes, home, None) as plain:
        plain("db = opened(); append('old', 'the first'); db.close()")
    with closing(sqlite3.connect(home / "state.db", isolation_level=None)) as conn:
        conn.execute("BEGIN")
        conn.execute("DELETE FROM messages")
        conn.executemany(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('old','user',?,?)",
            [(text, OLD + n) for n, text in enumerate(texts)],
        )
        conn.execute("COMMIT")


# Spaces


@pytest.mark.parametrize("dims", [64, 32])
def test_after_another_model_was_chosen_nothing_old_is_compared_and_status_counts_it(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer, dims: int
) -> None:
    profile(home, server)
    history(hermes, home, "the garden pump leaks", "it drips since Monday")
    assert told(hermes, plugin, home, (), "backfill").returncode == 0
    assert len(embedded(home / "state.db")) == 2
    with TwinServer(turn=7, dims=dims) as second:
        profile(home, second, model="another")
        with Live(hermes, home, plugin) as live:
            live("db = opened()")
            assert live("how('garden pump')") == [["old", "keyword"]]
            assert live("asked('garden pump')['semantic']['coverage']") == 0.0
            live("append('invoice', 'the quarterly invoice is late'); settle()")
            assert live("how('invoice quarterly is the late')") == [["invoice", "both"]]
            assert live("how('garden pump')") == [["old", "keyword"]]
            assert live("failures()") == []
            live("db.close()")
        status = told(hermes, plugin, home, (), "status").stdout
    assert "stub, 64 dimensions, not in use: 2 messages" in status
    assert f"another, {dims} dimensions, in use: 1 message" in status
    assert "1 of 3 messages" in status


@pytest.mark.parametrize(
    "change",
    [
        {"provider": "b"},
        {"model": "b"},
        {"dims": 9},
        {"document_prefix": "b: "},
        {"query_prefix": "b: "},
        {"extra": {"engine": "b"}},
    ],
)
def test_whatever_changes_the_vectors_is_another_space(change: dict[str, Any]) -> None:
    was = Description("a", "a", 8, document_prefix="a: ", query_prefix="a: ")
    key = spaces.settings_key(was, 256)
    assert spaces.settings_key(replace(was, **change), 256) != key
    assert spaces.settings_key(was, 128) != key  # the chunking


def _rounded(values: Sequence[float]) -> list[float]:
    return [math.copysign(1.0, value) for value in values]


def _permuted(values: Sequence[float]) -> list[float]:
    return [*values[3:], *values[:3]]


@pytest.mark.parametrize("other", [_permuted, _rounded])
def test_another_engine_or_quantisation_behind_the_same_name_is_a_new_space(
    database: PlainDatabase, other: Any
) -> None:
    old = database.message("the disk is full")
    Indexer(database, CountingEmbedder(), Settings()).index_batch()
    embedder = CountingEmbedder()
    embedder.fail = lambda texts: [Item(other(unit(text))) for text in texts]
    new = database.message("a later message here")
    indexer = Indexer(database, embedder, Settings())
    while not indexer.index_batch().done:
        pass
    space = indexer.space(database.conn)
    assert space is not None and space.id == 2
    found = nearest.nearest(
        database.conn, space.id, 8, other(unit("the disk is full")), 5, -1.0, Filters(),
        layout.read(database.conn),
    )  # fmt: skip
    assert {n.msg_id for n in found} == {old, new}
    assert found[0].msg_id == old and found[0].similarity == pytest.approx(1, abs=1e-5)


class LyingServer(TwinServer):
    """The same model name, another engine: to it one question means what another text did."""

    def _payload(self, texts: list[str], status: int) -> dict[str, Any]:
        answer = super()._payload(texts, status)
        for text, item in zip(texts, answer["data"], strict=True):
            if text == "an omelette with herbs":
                item["embedding"] = stub_vector("the garden pump leaks")
            else:
                item["embedding"] = _permuted(item["embedding"])
        return answer


def test_a_question_to_another_engine_is_not_compared_with_the_old_vectors_even_at_first(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('pump', 'the garden pump leaks'); settle(); db.close()")
    with LyingServer() as swapped:
        profile(home, swapped)
        with Live(hermes_019, home, plugin_019) as live:
            live("db = opened()")
            assert live("how('an omelette with herbs')") == []


# Tiers

SCRIPT = """
import json, sqlite3, sys
from hermes_patch import layout, nearest
conn = sqlite3.connect(sys.argv[1])
given = json.load(sys.stdin)
tier = nearest.accelerate(conn, sys.argv[2])
found = nearest.nearest(conn, 1, 8, given["query"], given["k"], given["floor"],
                        layout.Filters(**given["filters"]), layout.read(conn))
print(json.dumps([tier, [n.msg_id for n in found]]))
"""


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    """A tier of the scan; the test runs for each that this machine has."""
    if request.param == nearest.SQLITE_VEC and python_with_extensions() is None:
        pytest.skip("no Python on this machine can load SQLite extensions")
    return str(request.param)


def scan(
    database: PlainDatabase,
    tier: str,
    query: Sequence[float],
    k: int = 10,
    floor: float = -1.0,
    **filters: Any,
) -> list[int]:
    """Search with one tier; sqlite-vec in a Python that can load it."""
    python = python_with_extensions() if tier == nearest.SQLITE_VEC else sys.executable
    library = nearest.find_library() if tier == nearest.SQLITE_VEC else "/nowhere"
    given = {"query": query, "k": k, "floor": floor, "filters": filters}
    done = subprocess.run(
        [str(python), "-c", SCRIPT, str(database.path), str(library)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(nearest.__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stderr
    used, found = json.loads(done.stdout)
    assert used == tier
    return list(found)


def fill(database: PlainDatabase, count: int, vector: Any, session: str) -> list[int]:
    """Add messages with vectors straight into the tables."""
    database.session(session)
    first = database.conn.execute("SELECT coalesce(max(id), 0) + 1 FROM messages").fetchone()[0]
    ids = list(range(first, first + count))
    database.conn.execute("BEGIN")
    database.conn.executemany(
        "INSERT INTO messages (id, session_id, role, content, timestamp) VALUES (?,?,'user',?,1)",
        [(i, session, f"text {i}") for i in ids],
    )
    database.conn.executemany(
        "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
        "created_at, space_id) VALUES (?,?,?,?,8,0,1)",
        [(i, session, vectors.to_blob(vector(i)), text_hash(f"text {i}")) for i in ids],
    )
    database.conn.execute("COMMIT")
    return ids


SPOILT: dict[str, object] = {
    "longer": vectors.pack(unit("a", 16)),
    "shorter": vectors.pack(unit("a", 4)),
    "empty": b"",
    "torn": b"\0" * 31,
    "zero": vectors.pack([0.0] * 8),
    "NaN": vectors.pack([math.nan] * 8),
    "Inf": vectors.pack([math.inf, *unit("a")[1:]]),
    "one NaN": vectors.pack([math.nan, *unit("a")[1:]]),
}


def test_spoilt_rows_among_good_ones_neither_stop_the_scan_nor_come_first(
    database: PlainDatabase, tier: str
) -> None:
    good = fill(database, 3, lambda i: [i + v for v in unit("a")], "good")
    for name, blob in SPOILT.items():
        spoilt = fill(database, 1, lambda i: unit("a"), name)
        row = (blob, *spoilt)
        database.conn.execute("UPDATE message_embeddings SET embedding=? WHERE msg_id=?", row)
    query = [0.5 + value for value in unit("a")]
    assert set(scan(database, tier, query, floor=0.1)) == set(good)


@pytest.mark.parametrize("name", ["longer", "empty", "zero", "NaN", "Inf"])
def test_a_spoilt_vector_is_refused_when_it_is_to_be_stored(name: str) -> None:
    values = vectors.unpack(bytes(SPOILT[name]))  # type: ignore[call-overload]
    with pytest.raises(VectorError):
        vectors.to_blob(values, 8)


def test_a_filter_that_keeps_the_farthest_three_of_5000_gets_these_three(
    database: PlainDatabase, tier: str
) -> None:
    fill(database, 5000, lambda i: unit("a"), "near")
    far = fill(database, 3, lambda i: unit("b"), "far")
    assert set(scan(database, tier, unit("a"), k=3, exclude_session_ids=["near"])) == set(far)
    assert len(scan(database, tier, unit("a"), k=5003)) == 5003


STATUS = """
import json, sys
from pathlib import Path
from hermes_patch import overview
data = overview.gather(Path(sys.argv[1]))
print(json.dumps([data["database"]["tier"], "\\n".join(overview.lines(data))]))
"""


@pytest.mark.parametrize("extensions", [False, True])
def test_status_says_which_tier_is_in_use_with_and_without_extensions(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer, extensions: bool
) -> None:
    python = python_with_extensions() if extensions else str(hermes_019.python)
    if python is None:
        pytest.skip("no Python on this machine can load SQLite extensions")
    if not extensions and _loads_extensions(python):
        pytest.skip("the Python that runs Hermes here can load SQLite extensions")
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('pump', 'the garden pump leaks'); settle(); db.close()")
    library = Path(str(nearest.find_library())).parent
    vendor = home / "plugins" / "hermes_patch" / "vendor"
    vendor.mkdir(parents=True)
    (vendor / "sqlite_vec").symlink_to(library)
    site = f"{plugin_019}:{hermes_019.site}"
    environment = {"PYTHONPATH": site if extensions else str(plugin_019)}
    done = subprocess.run(
        [python, "-c", STATUS, str(home)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    tier, text = json.loads(done.stdout)
    assert tier == (nearest.SQLITE_VEC if extensions else nearest.PURE_PYTHON)
    assert ("sqlite-vec" in text) and ("pure Python" in text) is not extensions


def _loads_extensions(python: str) -> bool:
    code = "import sqlite3; sqlite3.Connection.enable_load_extension"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def test_everything_works_without_extensions(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    if _loads_extensions(str(hermes.python)):
        pytest.skip("the Python that runs Hermes here can load SQLite extensions")
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'the garden pump leaks'); settle()")
        assert live("how('pump leaks the garden')") == [["pump", "both"]]
        assert live("asked('pump leaks the garden')['semantic']['status']") == "ok"
        assert (
            live(f"db.search_by_vector({stub_vector('the garden pump leaks')})[0]['msg_id']") == 1
        )
        assert live("failures()") == []


# Our tables and other programs


OURS = (
    "message_embeddings",
    "embedding_spaces",
    "embedding_skips",
    "embedding_lease",
    "embedding_state",
    "hermes_patch_migrations",
)
DROPPED = tuple(f"DROP TABLE {name}" for name in OURS)


@pytest.mark.parametrize("dropped", [(), DROPPED], ids=["with our tables", "without them"])
def test_programs_without_us_can_delete_and_rename(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer, dropped: tuple[str, ...]
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'the garden pump leaks', 'it drips'); settle()")
        live("db.close()")
    renames = ["ALTER TABLE sessions RENAME TO s", "ALTER TABLE s RENAME TO sessions"]
    if not rows(home / "state.db", "SELECT 1 FROM sqlite_master WHERE type = 'view'"):
        renames += ["ALTER TABLE messages RENAME TO m", "ALTER TABLE m RENAME TO messages"]
    from_outside(home, *dropped, "DELETE FROM messages WHERE id = 1", *renames)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'and it was mended'); settle()")
        assert live("db.embedding_count()") == 2
    assert embedded(home / "state.db") == ["it drips", "and it was mended"]


def test_tables_that_vanish_while_running_are_made_again_and_hermes_notices_nothing(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'the garden pump leaks'); settle()")
        from_outside(home, *DROPPED)
        assert live("how('garden pump')") == [["pump", "keyword"]]
        live("append('pump', 'it drips since Monday'); settle()")
        assert live("until(lambda: db.embedding_count() == 2)"), live("failures()")
        assert live("how('leaks the garden pump')") == [["pump", "both"]]
        assert live("failures()") == []
        assert live("count('PRAGMA integrity_check')") == "ok"
    assert embedded(home / "state.db") == contents(home / "state.db")


@pytest.mark.parametrize("table", OURS)
def test_a_table_that_vanished_between_two_starts_is_made_again(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer, table: str
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('pump', 'the garden pump leaks'); settle(); db.close()")
    from_outside(home, f"DROP TABLE {table}")
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('pump', 'it drips since Monday'); settle()")
        assert live("until(lambda: db.embedding_count() == 2)"), live("failures()")
        assert live("failures()") == []
    tables = {row[0] for row in rows(home / "state.db", "SELECT name FROM sqlite_master")}
    assert set(OURS) - {"hermes_patch_migrations"} <= tables


# Out of step


def test_vectors_deleted_behind_our_back_are_counted_as_missing_and_made_again(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', *[f'pump number {n} leaks' for n in range(6)])")
        live("settle()")
        from_outside(home, "DELETE FROM message_embeddings WHERE msg_id < 4")
        answer = live("asked('pump number')['semantic']")
        assert answer["coverage"] == 0.5 and "3 of 6 messages" in answer["note"]
        live("append('pump', 'one word more'); settle()")
        assert live("until(lambda: db.embedding_count() == 7)")
    assert len(embedded(home / "state.db")) == 7


def test_a_process_killed_while_it_writes_leaves_whole_vectors_and_the_next_one_goes_on(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server, batchSize=4)
    with Live(hermes, home, plugin) as live:
        live("worker.PAUSE = 0.0; db = opened()")
        live("append('pump', *[f'pump number {n} leaks' for n in range(120)])")
        live("until(lambda: db.embedding_count() >= 30)")
        live.kill()
    assert 30 <= len(embedded(home / "state.db")) < 120
    with Live(hermes, home, plugin) as live:
        live("worker.PAUSE = 0.0; db = opened(); append('pump', 'one word more'); settle()")
        assert live("count('PRAGMA integrity_check')") == "ok"
    assert embedded(home / "state.db") == contents(home / "state.db")
    assert len(server.messages) <= 121 + 4


def test_rows_deleted_with_foreign_keys_off_are_gone_at_once_and_their_vectors_soon(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'the garden pump leaks', 'it drips'); settle()")
        assert live("found('leaks the garden pump')") == ["pump"]
        from_outside(home, "DELETE FROM messages WHERE id = 1")
        assert live("found('leaks the garden pump')") == []
        orphans = "SELECT count(*) FROM message_embeddings WHERE msg_id = 1"
        live("db.set_session_title('pump', 'about pumps')")
        assert live(f"until(lambda: settle() and count({orphans!r}) == 0)")


def test_the_vector_of_an_edited_text_is_not_served_and_the_new_text_gets_one(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'the garden pump leaks', 'it drips'); settle()")
        from_outside(home, "UPDATE messages SET content = 'the quarterly invoice' WHERE id = 1")
        assert live("found('leaks garden pump')") == []
        live("db.set_session_title('pump', 'about invoices')")
        assert live("until(lambda: settle() and found('invoice the quarterly'))") == ["pump"]
    assert embedded(home / "state.db") == contents(home / "state.db")
    assert server.messages.count("the quarterly invoice") == 1


# The same text under new ids


def test_a_transcript_written_again_costs_one_text_for_the_one_that_changed(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server, batchSize=64)
    again = """
texts = [f"pump number {n} leaks" for n in range(200)]
texts[77] = "this one was changed"
if hasattr(db, "replace_messages"):
    db.replace_messages("pump", [{"role": "user", "content": text} for text in texts])
else:
    db.clear_messages("pump")
    append("pump", *texts)
settle(seconds=120)
"""
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', *[f'pump number {n} leaks' for n in range(200)])")
        live("settle(seconds=120)")
        before = len(server.messages)
        live(again)
        assert server.messages[before:] == ["this one was changed"]
    assert embedded(home / "state.db") == contents(home / "state.db")
    assert len(contents(home / "state.db")) == 200


def test_branches_and_three_compactions_cost_no_text_twice_and_give_one_hit_a_text(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); texts = [f'pump number {n} leaks' for n in range(20)]")
        live("append('pump', *texts); append('branch', *texts); settle()")
        for _ in range(3):
            live(
                "db.archive_and_compact('pump', [{'role': 'user', 'content': t}"
                " for t in texts[-5:]]); settle()"
            )
        assert live("db.embedding_count()") == 55
        ids = live(
            "[n for n in db.search_by_vector(engine().embedder.embed_query(texts[19], 5), 50)]"
        )
        assert len(ids) > 2  # every copy has its vector
        found = live(
            "from hermes_patch import recall\n"
            "trace = recall.Trace(); token = recall.tool_call.set(trace)\n"
            "rows = db.search_messages(query='leaks the nineteenth: number 19 pump', limit=50)\n"
            "recall.tool_call.reset(token)\n"
            "[count('SELECT content FROM messages WHERE id = ?', i) for i, f in"
            " trace.found.items() if f.search_type == 'vector']"
        )
        assert len(found) == len(set(found))
    assert sorted(server.messages[:20]) == sorted(f"pump number {n} leaks" for n in range(20))
    assert len([text for text in server.messages if "nineteenth" not in text]) <= 21


# Locks


@pytest.mark.parametrize("patient", [True, False])
def test_a_locked_database_is_for_hermes_what_it_was_and_we_try_again(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer, patient: bool
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'the garden pump leaks'); settle()")
        live(f"patience({40 if patient else 0.5})")
        with closing(sqlite3.connect(home / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            if patient:
                live.tell("append('pump', 'written while it was locked')")
                time.sleep(5.0 if hermes.target.schema == 22 else 1.5)
                other.execute("ROLLBACK")
                live.answer()
            else:
                with pytest.raises(Raised, match="database is locked"):
                    live("append('pump', 'written while it was locked')")
                assert live("found('garden pump')") == ["pump"]
                other.execute("ROLLBACK")
                live("append('pump', 'written after it was locked')")
        assert live("settle(), db.embedding_count()") == [True, 2]
        assert live("failures()") == []


def test_the_worker_waits_until_a_lock_is_gone(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    server.mode = "hang"
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('pump', 'the garden pump leaks')")
        assert server.received.wait(30)
        live("patience(0.5)")
        with closing(sqlite3.connect(home / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            server.mode = "fine"
            server._release.set()
            assert live("until(failures)")
            other.execute("ROLLBACK")
        assert live("until(lambda: settle() and db.embedding_count() == 1)")


# The log of WAL mode


def test_nothing_of_a_backfill_keeps_the_log_from_being_emptied(tmp_path: Path) -> None:
    database = PlainDatabase(tmp_path / "state.db")
    for n in range(400):
        database.message(f"pump number {n} leaks")
    host = sqlite3.connect(database.path, isolation_level=None, timeout=0)
    sizes: list[int] = []
    emptied: list[tuple[int, ...]] = []

    def write_on(texts: Sequence[str]) -> None:
        host.execute("INSERT INTO messages (session_id, role, content, timestamp) "
                     "VALUES ('s1', 'tool', ?, 1)", ("x" * 300_000,))  # fmt: skip
        emptied.append(host.execute("PRAGMA wal_checkpoint(RESTART)").fetchone())
        sizes.append(os.stat(f"{database.path}-wal").st_size)

    embedder = CountingEmbedder()
    embedder.fail = write_on

    class Handle:
        def __init__(self) -> None:
            self.conn = sqlite3.connect(database.path, isolation_level=None)

        def _execute_write(self, change: Any) -> Any:
            self.conn.execute("BEGIN IMMEDIATE")
            result = change(self.conn)
            self.conn.commit()
            return result

        def close(self) -> None:
            self.conn.close()

    made = runner.HomeDatabase(Handle, database.path)
    run = runner.Backfill(made, embedder, Settings(), sleep=lambda seconds: None)
    run.prepare()
    assert run.run().stored == 400
    assert len(sizes) > 20 and max(sizes) < 6_000_000  # of more than that written
    assert {row[0] for row in emptied} == {0}  # nobody was reading or writing meanwhile
    host.close()


# Consent


def test_of_ten_thousand_old_messages_none_leaves_before_a_backfill_that_says_so(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    history(hermes, home, *[f"an old note number {n}" for n in range(10_000)])
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('new', 'the garden pump leaks'); settle()")
        live("found('the old note number 17'); append('new', 'it drips'); settle(); db.close()")
    assert set(server.messages) - {"the old note number 17"} == {
        "the garden pump leaks",
        "it drips",
    }
    before = len(server.texts)
    announced = told(hermes, plugin, home, (), "backfill", "--dry-run")
    assert (
        "10000 messages (10000 distinct texts) will be embedded on this machine" in announced.stderr
    )
    assert len(server.texts) == before
