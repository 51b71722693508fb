"""A Hermes that stays alive and does what it is told; run inside a Hermes.

Every line of the input is a JSON string of Python: an expression, whose value is answered as
JSON, or statements. ``{"error": "Type: message"}`` answers what raised. An empty line ends the
process the ordinary way.
"""

import ast
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

import tools.session_search_tool as tool  # noqa: E402
from hermes_state import SessionDB  # noqa: E402

db = None

home = Path(os.environ["HERMES_HOME"])
ours = None
if "hermes_patch" in os.environ.get("PYTHONPATH", ""):
    import hermes_patch as ours
    from hermes_patch import engine as engines
    from hermes_patch import sweeper, worker

    worker.DEBOUNCE = 0.02
    worker.LEASE_POLL = 0.1
    worker.BACKOFF = (0.2, 0.4)
    sweeper.RECENT_SECONDS = 0.1
    engines.COVERAGE_SECONDS = 0.0
    ours.install()


def opened(path=None, **more):
    """Open a database the way Hermes does, by default that of the home."""
    return SessionDB(Path(path or home / "state.db"), **more)


def append(session, *texts, db=None, role="user", source="cli"):
    """Append messages to a session; makes it where it is missing."""
    db = globals()["db"] if db is None else db
    if db.get_session(session) is None:
        db.create_session(session, source=source)
    return [db.append_message(session, role, text) for text in texts]


def engine(handle=None):
    return ours._host.engine_of(db if handle is None else handle)


def settle(handle=None, seconds=60):
    """Wait until the worker of a database has nothing to do."""
    working = ours._host.workers.of(engine(handle))
    working.wake()
    return working.idle.wait(seconds)


def found(query, handle=None, **more):
    """The sessions and search_type of what ``search_messages`` returns, best first."""
    rows = (db if handle is None else handle).search_messages(query=query, limit=20, **more)
    return [row["session_id"] for row in rows]


def asked(query, handle=None, **more):
    """The answer of the tool, as data."""
    return json.loads(
        tool.session_search(query=query, db=db if handle is None else handle, limit=5, **more)
    )


def how(query, handle=None, **more):
    """Session and search_type of every result of the tool, best first."""
    results = asked(query, handle, **more)["results"]
    return [[row["session_id"], row.get("search_type")] for row in results]


def count(sql, *params, handle=None):
    """One number of a database, over Hermes's connection."""
    return (db if handle is None else handle)._conn.execute(sql, params).fetchone()[0]


def until(condition, seconds=30):
    """Wait for something to become true; its last value."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def switch(folder):
    """Make another profile the current one, the way this version of Hermes does."""
    import hermes_constants

    if hasattr(hermes_constants, "set_hermes_home_override"):
        hermes_constants.set_hermes_home_override(str(folder))
    else:
        os.environ["HERMES_HOME"] = str(folder)


def forked(work):
    """What *work* returns in a forked child; "hung" when it does not answer in time."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            told = json.dumps(work())
        except BaseException as error:
            told = json.dumps(f"raised {type(error).__name__}: {error}")
        os.write(writing, told.encode())
        os.close(writing)
        raise SystemExit(0)  # the ordinary way out, through atexit
    os.close(writing)
    killer = threading.Timer(40, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    killer.cancel()
    return [json.loads(told) if told else "hung", os.waitstatus_to_exitcode(status)]


def patience(seconds):
    """How long a write of this version tries against a lock."""
    SessionDB._WRITE_MAX_RETRIES = max(1, int(seconds))
    SessionDB._WRITE_PATIENCE_S = SessionDB._TRANSCRIPT_WRITE_PATIENCE_S = seconds


def failures(handle=None):
    return [vars(failure) for failure in engine(handle).guard.failures()]


def perform(code):
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<told>", "exec"), globals())
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "<told>", "exec"), globals())
    return eval(compile(ast.Expression(last.value), "<told>", "eval"), globals())


main_process = os.getpid()
for line in sys.stdin:
    if not line.strip():
        break
    try:
        answer = {"value": perform(json.loads(line))}
    except Exception as error:
        if os.environ.get("LIVE_TRACE"):
            traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    if os.getpid() != main_process:
        break
    channel.write(json.dumps(answer, default=str) + "\n")
    channel.flush()
