"""``hermes-patch cron``: the hourly catch-up in Hermes's own cron, systemd and crontab."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_patch import deploy, overview
from hermes_patch.deploy import jobs
from hermes_patch.deploy.jobs import crontab, hermes_cron, placing, script, systemd
from hermes_patch.embedders.base import PROBE_TEXT
from hermes_patch.errors import DeployError
from stub_server import StubServer
from targets import CI, MATRIX, Installed, provide

SCRIPTS = Path(__file__).parent / "scripts"
_OTHERS = [CI[1], *MATRIX]
RELEASES = [pytest.param(CI[2], id=CI[2].name)] + [
    pytest.param(target, id=target.name, marks=pytest.mark.matrix) for target in _OTHERS
]
# Makes our job due, lets Hermes's scheduler run what is due, and tells what it recorded.
TICK = """
import json, sys
from cron import jobs, scheduler
ours = [job for job in jobs.list_jobs(include_disabled=True) if "hermes_patch" in job["script"]]
sent = []
if hasattr(scheduler, "_deliver_result"):
    original = scheduler._deliver_result
    def watched(job, content, *args, **kwargs):
        sent.extend(scheduler._resolve_delivery_targets(job))
        return original(job, content, *args, **kwargs)
    scheduler._deliver_result = watched
jobs.trigger_job(ours[0]["id"])
scheduler.tick(verbose=False)
job = jobs.get_job(ours[0]["id"])
print(json.dumps([len(ours), sent, job["last_status"], job["last_error"], job["deliver"]]))
"""
FAKE_CRONTAB = """#!{python}
import os, sys
path = {file!r}
if sys.argv[1] == "-l":
    if not os.path.exists(path):
        sys.exit("no crontab for somebody")
    sys.stdout.buffer.write(open(path, "rb").read())
elif sys.argv[1] == "-r":
    os.unlink(path)
else:
    open(path, "wb").write(sys.stdin.buffer.read())
"""
FAKE_SYSTEMCTL = """#!{python}
import sys
with open({file!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
sys.exit({code})
"""


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """What this user's machine has: executables in a folder that is all of PATH."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.user = folder / "bin", folder / "user"
        self.bin.mkdir()
        self.user.mkdir()
        self.crontab, self.log = folder / "crontab", folder / "systemctl.log"

    def has_crontab(self) -> None:
        text = FAKE_CRONTAB.format(python=sys.executable, file=str(self.crontab))
        put(self.bin / "crontab", text)

    def has_systemd(self, code: int = 0) -> None:
        text = FAKE_SYSTEMCTL.format(python=sys.executable, file=str(self.log), code=code)
        put(self.bin / "systemctl", text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(found.bin))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(found.user / "config"))
    return found


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A home whose path has a space, a quote, a percent sign and Chinese in it."""
    folder = tmp_path / "it's 100% 家"
    folder.mkdir()
    return folder


@pytest.fixture
def applied(odd: Path, hermes_019: Installed) -> Path:
    (odd / "config.yaml").write_text(
        '{"agents": {"defaults": {"memorySearch": {"provider": "openai", "model": "stub", '
        '"remote": {"baseUrl": "http://127.0.0.1:9/v1"}}}}}'
    )
    deploy.apply(odd, hermes_python=hermes_019.python)
    return odd


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def embedded(home: Path) -> int:
    conn = sqlite3.connect(home / "state.db")
    found: int = conn.execute("SELECT count(DISTINCT msg_id) FROM message_embeddings").fetchone()[0]
    conn.close()
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_hermes_own_cron_embeds_what_is_new_and_delivers_nothing(
    release: Any, odd: Path, machine: Machine
) -> None:
    hermes = provide(release)
    with StubServer() as server:
        (odd / "config.yaml").write_text(server.config())
        hermes.run(SCRIPTS / "history.py", "disk", "bulbs", home=odd)
        deploy.apply(odd, hermes_python=hermes.python)
        report = placing.install(odd)
        assert [step.action for step in report.steps] == ["created", "created"]
        assert any("gateway does not run" in note for note in report.notes)
        before = hermes_cron.file(odd).read_bytes(), script.path(odd).read_bytes()
        assert not placing.install(odd).changed
        assert before == (hermes_cron.file(odd).read_bytes(), script.path(odd).read_bytes())

        # Another script beside ours must not take a module's place.
        (odd / "scripts" / "httpx.py").write_text("raise SystemExit('not the real one')")
        hermes.run(SCRIPTS / "history.py", "docker", home=odd)
        tick = hermes.run_json(TICK, home=odd)
        assert tick == [1, [], "ok", None, "local"]
        assert embedded(odd) == 2
        assert len([text for text in server.texts if text != PROBE_TEXT]) == 2
        asked = server.requests
        assert hermes.run_json(TICK, home=odd)[2] == "ok"
        assert server.requests == asked

        server.mode = "401"
        hermes.run(SCRIPTS / "history.py", "bread", home=odd)
        count, sent, status, error, _ = hermes.run_json(TICK, home=odd)
        assert (count, sent, status) == (1, [], "error")
        assert "401" in error and "Traceback" not in error
    data = overview.gather(odd)
    assert data["catch_up"]["method"] == "hermes" and "401" in data["catch_up"]["problem"]
    assert any(line.startswith("catch-up  every 1h, by hermes") for line in overview.lines(data))
    placing.remove(odd)
    assert jobs.find(odd) is None and hermes_cron.find(odd) is None
    assert not script.path(odd).exists()


def catch_up(home: Path, hermes: Installed, *words: str) -> subprocess.CompletedProcess[str]:
    main = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"
    env = {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}
    words = ("catch-up", "--hermes-home", str(home), *words)
    return hermes.run(main, *words, home=home, env=env, check=False)


def test_a_catch_up_is_silent_when_there_is_nothing_to_do_or_nothing_may_be_done(
    hermes_019: Installed, home: Path
) -> None:
    with StubServer() as server:
        (home / "config.yaml").write_text(server.config())
        hermes_019.run(SCRIPTS / "history.py", home=home)
        deploy.apply(home, hermes_python=hermes_019.python)
        quiet = (0, "", "")
        done = catch_up(home, hermes_019)
        assert (done.returncode, done.stdout, done.stderr) == quiet
        hermes_019.run("\n".join(_APPEND), home=home)
        conn = sqlite3.connect(home / "state.db")
        lease = (f"{os.getpid()}-0@elsewhere",)
        taken = "INSERT INTO embedding_lease VALUES (1, ?, unixepoch() + 30)"
        conn.execute(taken, lease)
        conn.commit()
        done = catch_up(home, hermes_019)
        assert (done.returncode, done.stdout, done.stderr) == quiet
        conn.execute("DELETE FROM embedding_lease")
        conn.commit()
        conn.close()
        (home / "config.yaml").write_text(server.config(realtime=False))
        done = catch_up(home, hermes_019)
        assert (done.returncode, done.stdout, done.stderr) == quiet
        assert server.texts == []
        (home / "config.yaml").write_text(server.config())
        assert json.loads(catch_up(home, hermes_019, "--json").stdout)["stored"] == 1
        assert "a message that is new" in server.texts


_APPEND = (
    "import os, uuid",
    "from hermes_state import SessionDB",
    "from pathlib import Path",
    "db = SessionDB(Path(os.environ['HERMES_HOME']) / 'state.db')",
    "name = uuid.uuid4().hex",
    "db.create_session(name, source='cli')",
    "db.append_message(name, 'user', 'a message that is new')",
    "db.close()",
)


def test_crontab_gets_one_line_and_every_other_byte_stays(
    applied: Path, machine: Machine, hermes_019: Installed
) -> None:
    machine.has_crontab()
    others = b"MAILTO=me\n0 4 * * * backup \\% # hermes-patch-00000000\n# \xff not UTF-8\n\n"
    machine.crontab.write_bytes(others)
    before = files(applied)
    placing.install(applied, method="crontab")
    first = machine.crontab.read_bytes()
    assert not placing.install(applied, method="crontab").changed
    assert machine.crontab.read_bytes() == first
    placing.install(applied, every="2h")
    assert first.startswith(others) and machine.crontab.read_bytes().startswith(others)
    ours = machine.crontab.read_bytes().removeprefix(others).decode()
    minute, hours, _, _, _, command = ours.split(" ", 5)
    assert (minute.isdigit(), hours, ours.count("\n")) == (True, "*/2", 1)
    # cron turns \% into % and gives the rest to sh.
    words = shlex.split(command.replace("\\%", "%"), comments=True)
    assert words == [str(hermes_019.python), str(script.path(applied))]
    placing.remove(applied)
    assert machine.crontab.read_bytes() == others
    assert files(applied) == before


def test_a_crontab_that_was_not_there_is_not_there_afterwards(
    applied: Path, machine: Machine
) -> None:
    machine.has_crontab()
    placing.install(applied, method="crontab")
    assert jobs.find(applied) == jobs.Job("crontab", "1h", "crontab")
    placing.remove(applied)
    assert not machine.crontab.exists()


def test_the_line_in_the_crontab_runs_the_catch_up(
    applied: Path, machine: Machine, hermes_019: Installed
) -> None:
    machine.has_crontab()
    placing.install(applied, method="crontab")
    command = machine.crontab.read_text().split(" ", 5)[5].replace("\\%", "%")
    hermes_019.run(SCRIPTS / "history.py", "disk", home=applied)
    env = {"HOME": str(machine.user), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=env, capture_output=True, text=True, check=False
    )
    # Nobody listens at the configured address: one line says so, and nothing else is printed.
    assert (done.returncode, done.stdout) == (1, "")
    assert "hermes-patch catch-up: " in done.stderr and done.stderr.count("\n") == 1


def test_systemd_gets_two_units_that_are_enabled_and_taken_back(
    applied: Path, machine: Machine, hermes_019: Installed
) -> None:
    machine.has_systemd()
    before = files(applied), files(machine.user)
    placing.install(applied)
    job = script.identity(applied)
    assert f"--user enable --now {job}.timer" in machine.log.read_text().splitlines()
    text = systemd.timer(job).with_suffix(".service").read_text()
    line = next(one for one in text.splitlines() if one.startswith("ExecStart="))
    escaped = str(script.path(applied)).replace("%", "%%")
    assert line == f'ExecStart="{hermes_019.python}" "{escaped}"'
    assert "OnUnitActiveSec=1h" in systemd.timer(job).read_text()
    assert jobs.find(applied) == jobs.Job("systemd", "1h", str(systemd.timer(job)))
    assert not placing.install(applied).changed
    placing.remove(applied)
    assert f"--user disable --now {job}.timer" in machine.log.read_text().splitlines()
    assert (files(applied), files(machine.user)) == before


def test_another_way_takes_the_job_along_and_revert_takes_it_back(
    applied: Path, machine: Machine
) -> None:
    machine.has_systemd()
    machine.has_crontab()
    placing.install(applied, method="crontab")
    placing.install(applied, method="systemd")
    assert not machine.crontab.exists()
    placing.install(applied, method="hermes")
    assert not systemd.timer(script.identity(applied)).exists()
    deploy.revert(applied)
    assert hermes_cron.find(applied) is None and not script.path(applied).exists()


def test_what_systemd_refuses_leaves_nothing_behind(applied: Path, machine: Machine) -> None:
    machine.has_systemd()
    text = FAKE_SYSTEMCTL.format(python=sys.executable, file=str(machine.log), code=0)
    fails = 'if "enable" in sys.argv: sys.exit("Failed to connect")\n'
    put(machine.bin / "systemctl", text.replace("import sys\n", f"import sys\n{fails}"))
    before = files(applied), files(machine.user)
    with pytest.raises(DeployError, match="Failed to connect"):
        placing.install(applied)
    assert (files(applied), files(machine.user)) == before


def test_a_dry_run_tells_and_does_nothing(applied: Path, machine: Machine) -> None:
    machine.has_crontab()
    before = files(applied)
    report = placing.install(applied, dry_run=True)
    assert {step.action for step in report.steps} == {"would create"}
    assert files(applied) == before and not machine.crontab.exists()
    placing.install(applied)
    report = placing.remove(applied, dry_run=True)
    assert {step.action for step in report.steps} == {"would remove"}
    assert machine.crontab.exists() and script.path(applied).exists()


def test_what_cannot_be_is_an_error_that_changes_nothing(
    applied: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(applied)
    with pytest.raises(DeployError, match="no `crontab` on PATH"):
        placing.install(applied, method="crontab")
    with pytest.raises(DeployError, match="cannot be reached"):
        placing.install(applied, method="systemd")
    cannot = {"can": False, "gateway": None}
    monkeypatch.setattr(hermes_cron, "probe", lambda *_: cannot)
    with pytest.raises(DeployError, match="hermes-patch catch-up"):
        placing.install(applied)
    assert files(applied) == before
    script.path(applied).parent.mkdir()
    script.path(applied).write_text("print('mine')\n")
    machine.has_crontab()
    for change in (placing.install, placing.remove):
        with pytest.raises(DeployError, match="move it away"):
            change(applied)
    assert script.path(applied).read_text() == "print('mine')\n" and not machine.crontab.exists()
    config = (applied / "config.yaml").read_text()
    (applied / "config.yaml").write_text(config.replace('"stub"', '"stub", "realtime": false'))
    with pytest.raises(DeployError, match="would do nothing"):
        placing.install(applied)


def test_an_old_cron_and_no_cron_at_all_are_told_apart(tmp_path: Path) -> None:
    for name, signature, can in (
        ("old", "prompt, schedule, script=None", False),
        ("none", "", False),
    ):
        folder = tmp_path / name
        folder.mkdir()
        if signature:
            (folder / "cron").mkdir()
            (folder / "cron" / "__init__.py").touch()
            text = f"def create_job({signature}): ...\ndef remove_job(job): ...\n"
            (folder / "cron" / "jobs.py").write_text(text)
        file = Path(hermes_cron.__file__).with_name("in_hermes.py")
        done = subprocess.run(
            [sys.executable, "-P", file, "probe"],
            env={"PYTHONPATH": str(folder)},
            capture_output=True,
            check=True,
        )
        assert json.loads(done.stdout) == {"can": can, "gateway": None}


def test_crontab_lines_for_every_choice() -> None:
    shown = {every: crontab.line(["x"], every, "hermes-patch-0000003d") for every in jobs.EVERY}
    assert {line.split(b" ")[1] for line in shown.values()} >= {b"*", b"*/2", b"*/12", b"4"}
    assert shown["15m"].startswith(b"*/15 * * * * x ")
    assert shown["1h"] == b"1 * * * * x # hermes-patch-0000003d\n"
    with pytest.raises(DeployError, match="line break"):
        crontab.line(["a\nb"], "1h", "hermes-patch-00000000")
