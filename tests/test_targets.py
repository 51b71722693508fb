"""The installations that other tests stand on are what they claim to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import targets
from targets import Installed, Target

FRESH_SCHEMA = """
import json, sqlite3
from hermes_state import SessionDB
db = SessionDB()
db.close()
row = sqlite3.connect(db.db_path).execute("SELECT version FROM schema_version").fetchone()
print(json.dumps([str(db.db_path), row[0]]))
"""

ROUNDTRIP = """
import json
from hermes_state import SessionDB
db = SessionDB()
db.create_session("one", "cli")
db.append_message("one", "user", "where did the quarterly invoices go")
db.append_message("one", "assistant", "They were moved to the archive bucket.")
print(json.dumps([row["session_id"] for row in db.search_messages("archive bucket")]))
"""

LOADED = """
import json, sys
import model_tools
from hermes_cli.plugins import discover_plugins
discover_plugins()
print(json.dumps(getattr(sys, "registered_by_plugin", None)))
"""

TOOL = """
import json
from hermes_state import SessionDB
from tools.session_search_tool import session_search
db = SessionDB()
db.create_session("one", "cli")
db.append_message("one", "user", "please rotate the postgres credentials")
answer = json.loads(session_search(query="postgres", db=db, limit=3))
print(json.dumps([result["session_id"] for result in answer["results"]]))
"""


def test_a_fresh_database_has_the_schema_version_of_the_table(
    hermes: Installed, target: Target, home: Path
) -> None:
    path, version = hermes.run_json(FRESH_SCHEMA, home=home)
    assert (path, version) == (str(home / "state.db"), target.schema)


def test_an_appended_message_is_found_by_keyword(hermes: Installed, home: Path) -> None:
    assert hermes.run_json(ROUNDTRIP, home=home) == ["one"]


def test_the_session_search_tool_answers_from_the_database(hermes: Installed, home: Path) -> None:
    assert hermes.run_json(TOOL, home=home) == ["one"]


def test_the_plugin_loader_loads_a_plugin_from_the_home(hermes: Installed, home: Path) -> None:
    folder = home / "plugins" / "trivial"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: trivial\nversion: 1.0.0\nkind: standalone\n")
    (folder / "__init__.py").write_text(
        "import sys\n\ndef register(ctx):\n    sys.registered_by_plugin = __file__\n"
    )
    (home / "config.yaml").write_text("plugins:\n  enabled: [trivial]\n")
    assert hermes.run_json(LOADED, home=home) == str(folder / "__init__.py")


def test_a_target_sees_nothing_of_the_test_run(hermes_019: Installed, home: Path) -> None:
    code = "import json, os; print(json.dumps(sorted(os.environ)))"
    names = hermes_019.run_json(code, home=home)
    assert [name for name in names if name.startswith(("PYTEST", "PYTHONPATH"))] == []


def test_a_failing_process_shows_what_it_printed(hermes_019: Installed, home: Path) -> None:
    with pytest.raises(AssertionError, match="the reason"):
        hermes_019.run("raise SystemExit('the reason')", home=home)


def test_an_installation_that_was_cut_short_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[Path] = []

    def install(target: Target, python: object, folder: Path) -> None:
        made.append(folder)
        (folder / "lib" / "python3.11").mkdir(parents=True)
        if len(made) == 1:
            raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(targets, "_install", install)
    with pytest.raises(subprocess.CalledProcessError):
        targets.provide(targets.CI[0], sys.executable)
    targets.provide(targets.CI[0], sys.executable)
    targets.provide(targets.CI[0], sys.executable)
    assert len(made) == 2
