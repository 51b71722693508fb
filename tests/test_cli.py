"""The command line itself: arguments, exit codes, broken pipes, which Python it hands over to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_patch import cli, config, deploy
from stub_server import StubServer
from targets import Installed

SCRIPTS = Path(__file__).parent / "scripts"
RUN = [sys.executable, "-m", "hermes_patch"]


@pytest.mark.parametrize("number", ["x", "0", "-1", "1.5", "", "²"])
def test_a_number_that_is_none_is_a_usage_error(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["backfill", f"--limit={number}"])
    assert stopped.value.code == 2
    assert "expected a whole number of at least 1" in capsys.readouterr().err


def test_a_relative_home_is_taken_from_the_working_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    assert config.hermes_home("home") == home


def test_a_reader_that_goes_away_is_no_traceback(home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*RUN, "status", "--json", "--hermes-home", str(home)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""


@pytest.fixture
def filled(hermes_019: Installed, home: Path) -> Path:
    """A patched home with a history that nothing has embedded, and no server behind it."""
    hermes_019.run(SCRIPTS / "history.py", home=home)
    return home


def start(home: Path, hermes: Installed, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, *words, "--hermes-home", str(home)],
        env=hermes.environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_commands_use_the_python_of_the_last_apply(hermes_019: Installed, filled: Path) -> None:
    with StubServer() as server:
        (filled / "config.yaml").write_text(server.config(minSimilarity=0.2))
        deploy.apply(filled, hermes_python=hermes_019.python)
        backfill = start(filled, hermes_019, "backfill", "--json")
        out, err = backfill.communicate(timeout=120)
        assert backfill.returncode == 0, err
        assert json.loads(out)["stored"] == 10
        search = start(filled, hermes_019, "search", "the disk", "--json")
        out, err = search.communicate(timeout=120)
        assert search.returncode == 0, err
        assert json.loads(out)["semantic"]["status"] == "ok"
        empty = start(filled, hermes_019, "search", "  ")
        assert "empty" in empty.communicate(timeout=120)[1]
        assert empty.returncode == 1


def test_a_backfill_without_a_server_says_what_it_waits_for_and_gives_up(
    hermes_019: Installed, filled: Path
) -> None:
    with StubServer() as server:
        (filled / "config.yaml").write_text(server.config())
    deploy.apply(filled, hermes_python=hermes_019.python)
    backfill = start(filled, hermes_019, "backfill")
    _, err = backfill.communicate(timeout=120)
    assert backfill.returncode == 1
    assert "trying again in" in err and "Traceback" not in err
    status = start(filled, hermes_019, "status")
    out, _ = status.communicate(timeout=60)
    assert "backfill: " in out and "indexing" not in out


def test_ctrl_c_ends_a_backfill_and_lets_go_of_the_lease(
    hermes_019: Installed, filled: Path
) -> None:
    with StubServer() as server:
        (filled / "config.yaml").write_text(server.config())
        deploy.apply(filled, hermes_python=hermes_019.python)
        server.mode = "hang"
        backfill = start(filled, hermes_019, "backfill")
        assert server.received.wait(60)
        backfill.send_signal(signal.SIGINT)
        time.sleep(0.5)
        backfill.send_signal(signal.SIGINT)
        _, err = backfill.communicate(timeout=60)
    assert backfill.returncode == 1
    assert "finishing the batch" in err and "interrupted" in err and "Traceback" not in err
    status = start(filled, hermes_019, "status", "--json")
    assert json.loads(status.communicate(timeout=60)[0])["database"]["indexing"] is None
