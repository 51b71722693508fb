"""Break one seam after another and show what Hermes's calls answer; run inside a Hermes.

On its input: a JSON object with ``cases`` (seam, kind and, for an exception, its name) and
``hang`` (seconds after which a hanging call comes back after all). Every case starts from a
fresh copy of the database and from a fresh presence of ours. Without the plugin the same calls
are made once. Prints a JSON object on its last line.
"""

import contextlib
import functools
import importlib
import inspect
import io
import json
import logging
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

TEXT = "the quokka ledger opens with marmalade-7141"
given = json.load(sys.stdin)
home = Path(os.environ["HERMES_HOME"])
path = home / "state.db"
master = Path(tempfile.mkdtemp()) / "state.db"
shutil.copy(path, master)
records: list[str] = []


class Recorder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.name} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + logging.Formatter().formatException(record.exc_info)
        records.append(line)


logging.getLogger().addHandler(Recorder())
with contextlib.redirect_stdout(io.StringIO()):
    import model_tools  # noqa: F401  Hermes discovers its plugins while this is imported
    import tools.session_search_tool as tool
    from hermes_state import SessionDB
ours = sys.modules.get("hermes_patch")


async def no_summary(*_args, **_kwargs):
    """What asking a model gives that is not there, without the long way to it."""


if hasattr(tool, "_summarize_session"):
    tool._summarize_session = no_summary

ERRORS = {
    "RuntimeError": lambda: RuntimeError(TEXT),
    "RecursionError": lambda: RecursionError(TEXT),
    "MemoryError": lambda: MemoryError(TEXT),
    "DatabaseError": lambda: sqlite3.DatabaseError(TEXT),
    "UnicodeError": lambda: UnicodeDecodeError("utf-8", TEXT.encode(), 0, 1, TEXT),
    "SystemExit": lambda: SystemExit(TEXT),
}
GARBAGE = {
    "None": lambda: None,
    "number": lambda: 42,
    "list": lambda: ["nonsense", {}, None, 7],
    "NaN": lambda: float("nan"),
    "vector": lambda: [float("nan")] * 64,
    "string": lambda: "x" * 1_000_000,
    "rows": lambda: outcome_of([{"id": 1}]),
    "no rows": lambda: outcome_of(["nonsense", None, 7]),
    "NaN hit": lambda: not_a_number(),
}


def outcome_of(rows):
    from hermes_patch.search import Outcome

    return Outcome(rows, {}, {})


def not_a_number():
    from hermes_patch.search import Found, Outcome

    row = dict.fromkeys(("id", "session_id", "role", "snippet", "timestamp", "tool_name"), 1)
    row |= dict.fromkeys(("source", "model", "session_started", "context"), 1)
    return Outcome([row], {1: Found("vector", float("nan"))}, {})


class Fault:
    """What stands in the place of one function of ours, and how often it was called."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self.calls = 0
        self.release = threading.Event()

    def __call__(self, *_args, **_kwargs):
        self.calls += 1
        if self.kind == "raise":
            raise ERRORS[self.name]()
        if self.kind == "hang":
            if not self.release.wait(given["hang"]):
                self.release.set()  # nobody gave up on it; once is enough to show
            raise RuntimeError("released")
        return GARBAGE[self.name]()


def place_of(seam: str):
    module, _, rest = seam.partition(":")
    owner = importlib.import_module(f"hermes_patch.{module}")
    *parents, name = rest.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def told(call, *args, **kwargs):
    """What a call of Hermes gave or raised, as text, and how long it took."""
    started = time.perf_counter()
    try:
        result = call(*args, **kwargs)
        answer = result if isinstance(result, str) else json.dumps(result, default=repr)
    except BaseException as error:
        answer = f"raised {type(error).__module__}.{type(error).__qualname__}: {error}"
    return answer, time.perf_counter() - started


def known(function, **wanted):
    """The arguments that this version of Hermes has."""
    return {k: v for k, v in wanted.items() if k in inspect.signature(function).parameters}


def calls(db):
    search = db.search_messages
    message = {"role": "user", "content": "the lamps in the hall are wired"}
    sorted_, fields = known(search, sort="newest"), known(search, fields=["id", "snippet"])
    yield "search", functools.partial(search, query="docker port", limit=50)
    yield "page", functools.partial(search, "bulbs", limit=1, offset=1, **sorted_)
    yield "chinese", functools.partial(search, query="磁盘清理", role_filter=["user"], **fields)
    yield "tool", functools.partial(tool.session_search, query="the starter", db=db, limit=5)
    yield "tool, no text", functools.partial(tool.session_search, query=" ", db=db)
    yield "wrong query", functools.partial(search, query=["a", "list"])
    yield "wrong limit", functools.partial(search, query="docker", limit="many")
    yield "no query", functools.partial(search)
    yield "no session", functools.partial(db.append_message, "nowhere", "user", "lost")
    yield "no role", functools.partial(db.append_message, "disk", None, "lost")
    yield "append", functools.partial(db.append_message, "disk", "user", "another disk")
    yield "append 2", functools.partial(db.append_message, "disk", role="user", content="and one")
    if hasattr(db, "replace_messages"):
        yield "replace", functools.partial(db.replace_messages, "ftp", [message])
        yield "replace, wrong", functools.partial(db.replace_messages, "ftp", 5)
    yield "clear", functools.partial(db.clear_messages, "bread")
    yield "clear, nothing", functools.partial(db.clear_messages, "nowhere")
    yield "after", functools.partial(contents, db)


def contents(db):
    columns = "id, session_id, role, content"
    return [tuple(row) for row in db._conn.execute(f"SELECT {columns} FROM messages ORDER BY id")]


def fresh() -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copy(master, path)


def journey(wait_for=lambda: None):
    """Make all calls on a fresh database; return answers and the longest time of one."""
    fresh()
    db = SessionDB(path)
    try:
        found = {name: told(call) for name, call in calls(db)}
        wait_for()
    finally:
        db.close()
    return {name: answer for name, (answer, _) in found.items()}, {
        name: seconds for name, (_, seconds) in found.items() if seconds > 1.0
    }


def anew() -> None:
    """Take our presence out and put a new one in."""
    if ours._host is not None:
        ours._host.workers.stop(0.0)
        with contextlib.suppress(AttributeError):  # there may be garbage instead of an embedder
            ours._host.uninstall()
    ours._host = None
    ours.install()


def configured(case):
    from hermes_patch import config

    real = config.load_inside_hermes

    return lambda: replace(real(), weights=tuple(case["weights"]), query_budget=case["seconds"])


def at_register() -> None:
    """Let Hermes load the plugin while a seam of the installation is broken."""
    if ours._host is not None:
        ours._host.uninstall()
    ours._host = None
    folder = home / "plugins" / "hermes_patch" / "__init__.py"
    plugin = next(m for m in list(sys.modules.values()) if is_file(m, folder))
    plugin.register(None)


def is_file(module, file: Path) -> bool:
    return getattr(module, "__file__", None) == str(file)


def run_case(case, stderr):
    started = time.perf_counter()
    fault = Fault(case["kind"], case.get("name", ""))
    importlib.import_module("hermes_patch.worker").DEBOUNCE = 0.01
    for module in map(importlib.import_module, ("hermes_patch.recall", "hermes_patch.host")):
        for budget in [name for name in vars(module) if name.endswith("_SECONDS")]:
            setattr(module, budget, case["seconds"])
    config = importlib.import_module("hermes_patch.config")
    real_load = config.load_inside_hermes
    config.load_inside_hermes = configured(case)
    if not case.get("at_register"):
        anew()
    owner, name = place_of(case["seam"]) if case["seam"] else (None, "")
    raw = vars(owner)[name] if owner else None
    records.clear()
    stderr.seek(0)
    stderr.truncate()

    def reached() -> None:
        deadline = time.monotonic() + 10
        while case.get("later") and not fault.calls and time.monotonic() < deadline:
            time.sleep(0.01)

    try:
        if owner:
            setattr(owner, name, fault)
        if case.get("at_register"):
            at_register()
        patched = SessionDB.search_messages
        answers, slow = journey(reached)
    finally:
        fault.release.set()
        if owner:
            setattr(owner, name, raw)
        config.load_inside_hermes = real_load
    time.sleep(0.02)
    sys.stderr.flush()
    stderr.seek(0)
    return {
        "answers": answers,
        "slow": slow,
        "seconds": time.perf_counter() - started,
        "calls": fault.calls,
        "patched": hasattr(patched, "__hermes_patch__"),
        "ours": [r for r in records if r.startswith("hermes_patch") or "hermes_patch/" in r],
        "stderr": re.sub(r"\x1b\[[0-9;]*m", "", stderr.read().decode("utf-8", "replace")),
    }


def main():
    if ours is None or ours._host is None:
        return {"plain": journey()[0]}
    saved = os.dup(2)
    with tempfile.TemporaryFile() as stderr:
        os.dup2(stderr.fileno(), 2)
        try:
            results = [run_case(case, stderr) for case in given["cases"]]
        finally:
            os.dup2(saved, 2)
    return {"results": results}


print(json.dumps(main()), flush=True)
os._exit(0)  # some of what hangs is still on its way
