"""Patch and unpatch a real Hermes in many orders; run inside a Hermes.

Arguments: the plugin folder with the package and the name of a scenario below, or of several.
Prints what each one found, as one JSON object.
"""

import contextlib
import functools
import importlib
import importlib.util
import io
import itertools
import json
import logging
import os
import sys
from pathlib import Path

folder = Path(sys.argv[1]) / "hermes_patch"
SEAM_MODULES = ("hermes_state", "tools.session_search_tool")


def package(name="hermes_patch"):
    """Import a copy of the package under a name of its own."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def seams():
    """Every entry of the places we patch, by identity."""
    state, tool = (importlib.import_module(name) for name in SEAM_MODULES)
    places = [*state.SessionDB.__mro__[:-1], tool]
    found = {
        (place.__name__, name): value for place in places for name, value in vars(place).items()
    }
    found |= {("schema", key): value for key, value in tool.SESSION_SEARCH_SCHEMA.items()}
    return found


def differences(before):
    now = seams()
    names = before.keys() | now.keys()
    missing = object()
    return sorted(
        f"{place}.{name}"
        for place, name in names
        if before.get((place, name), missing) is not now.get((place, name), missing)
    )


class Fusions:
    """Counts how often our part of a search runs, in every copy of the package."""

    def __init__(self, *names):
        self.count = 0
        for name in names:
            module = importlib.import_module(f"{name}.recall")
            module.widen = self.counting(module.widen)

    def counting(self, widen):
        def counted(*args):
            self.count += 1
            return widen(*args)

        return counted

    def of(self, work):
        self.count = 0
        work()
        return self.count


def database(name):
    from hermes_state import SessionDB

    db = SessionDB(Path(os.environ["HERMES_HOME"]) / name / "state.db")
    if db.get_session("s") is None:
        db.create_session("s", source="cli")
        db.append_message("s", "user", "docker port conflict")
    return db


def searched(db):
    return [row["session_id"] for row in db.search_messages(query="docker")]


def orders():
    """All orders of what a process may do, each from a clean start; what was left of it."""
    ours, before = package(), seams()
    steps = {"install": ours.install, "again": ours.install, "uninstall": ours.uninstall}
    steps |= {name: functools.partial(importlib.import_module, name) for name in SEAM_MODULES}
    left = {}
    for order in itertools.permutations(steps):
        for step in order:
            steps[step]()
        installs = [step for step in order if step not in SEAM_MODULES]
        active = ours.status()["active"]
        if active != (installs[-1] != "uninstall") or ours.status()["refusals"]:
            left[" ".join(order)] = ["active", active, ours.status()["refusals"]]
        ours.uninstall()
        if differences(before):
            left[" ".join(order)] = differences(before)
    return {"orders": len(list(itertools.permutations(steps))), "left": left}


def below():
    """Somebody patched before us: called while we are there, and back by identity after."""
    from hermes_state import SessionDB

    calls, original = [], SessionDB.search_messages

    def foreign(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    SessionDB.search_messages = foreign
    before = seams()
    ours, db = package(), database("below")
    ours.install()
    refusals = ours.status()["refusals"]
    rows = searched(db)
    ours.uninstall()
    result = {"rows": rows, "calls": len(calls), "left": differences(before), "refusals": refusals}
    SessionDB.search_messages = original
    db.close()
    return result


def above(wraps):
    """Somebody patches above us, we go and come back."""
    import tools.session_search_tool as tool
    from hermes_state import SessionDB

    before = seams()
    ours, db = package(), database("above")
    fusions = Fusions("hermes_patch")
    ours.install()
    like = functools.wraps if wraps else lambda _wrapped: lambda function: function
    calls, lower = [], {}
    for owner, name in ((SessionDB, "search_messages"), (SessionDB, "__init__"),
                        (SessionDB, "_execute_write"), (tool, "session_search")):  # fmt: skip
        lower[owner, name] = getattr(owner, name)

        def foreign(*args, _under=lower[owner, name], **kwargs):
            calls.append(1)
            return _under(*args, **kwargs)

        setattr(owner, name, like(lower[owner, name])(foreign))
    theirs = {key: vars(key[0])[key[1]] for key in lower}
    counts = {"both": fusions.of(lambda: searched(db))}
    buried = sorted(ours.uninstall()["buried"])
    kept = all(vars(owner)[name] is value for (owner, name), value in theirs.items())
    calls.clear()
    counts["theirs"] = fusions.of(lambda: searched(db))
    database("above").close()
    json.loads(tool.session_search(query="docker", db=db))
    called = len(calls)
    status = ours.install()
    counts["again"] = fusions.of(lambda: searched(db))
    counts["tool"] = fusions.of(lambda: tool.session_search(query="docker", db=db))
    ours.uninstall()
    on_top = all(vars(owner)[name] is value for (owner, name), value in theirs.items())
    counts["end"] = fusions.of(lambda: searched(db))
    for owner, name in lower:
        setattr(owner, name, before[owner.__name__, name])
    db.close()
    return {
        "counts": counts, "buried": buried, "kept": kept, "called": called > 2,
        "refusals": status["refusals"], "on_top": on_top, "left": differences(before),
    }  # fmt: skip


def copies():
    """Two copies of the package in one process, uninstalled in either order."""
    result = {}
    names = ("hermes_patch", "hermes_patch_copy")
    first, second = (package(name) for name in names)
    before, db = seams(), database("copies")
    fusions = Fusions(*names)
    for leave in (("first", "second"), ("second", "first")):
        by_name = {"first": first, "second": second}
        first.install()
        mine = seams()
        refused = second.install()
        changed = differences(mine)
        counts = [fusions.of(lambda: searched(db))]
        for name in leave:
            by_name[name].uninstall()
            counts.append(fusions.of(lambda: searched(db)))
        result["-".join(leave)] = {
            "counts": counts, "changed": changed, "left": differences(before),
            "capabilities": refused["capabilities"], "buried": refused["buried"],
            "reasons": sorted({r.rpartition(" is ")[2] for r in refused["refusals"].values()}),
        }  # fmt: skip
    db.close()
    return result


def lacking(change):
    """A Hermes that lacks something: what works, what does not, and what is said about it."""
    state = importlib.import_module("hermes_state")
    CHANGES[change](state)
    log = logging.getLogger("hermes_patch")
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    ours = package()
    status = ours.install()
    host = ours._host
    from hermes_state import SessionDB

    db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
    db.create_session(change, source="cli")
    db.append_message(change, "user", f"quiet {change} words")
    idle = host.workers.of(host.engine_of(db)).idle.wait(30)
    result = {"status": status, "idle": idle, "vectors": db.embedding_count(), "log": lines}
    rows = getattr(db, "search_messages", lambda **_: [])
    with contextlib.suppress(TypeError):
        result["rows"] = len(rows(query="words"))
    db.close()
    return result


def other_arguments(state):
    original = state.SessionDB.search_messages

    def search_messages(self, words, most=20):
        return original(self, query=words, limit=most)

    state.SessionDB.search_messages = search_messages


def renamed(state):
    for owner in state.SessionDB.__mro__:
        if "search_messages" in vars(owner):
            owner.find_messages = owner.search_messages
            del owner.search_messages


def no_helper(state):
    """Take the helper away from everybody but the methods that were compiled with it."""
    owner = next(o for o in state.SessionDB.__mro__ if "_execute_write" in vars(o))
    owner._write_otherwise = owner._execute_write
    for place in state.SessionDB.__mro__[:-1]:
        for name, value in list(vars(place).items()):
            code = getattr(value, "__code__", None)
            if code is not None and "_execute_write" in code.co_names:
                names = tuple(n.replace("_execute_write", "_write_otherwise")
                              for n in code.co_names)  # fmt: skip
                value.__code__ = code.replace(co_names=names)
    del owner._execute_write


def tool():
    return importlib.import_module("tools.session_search_tool")


CHANGES = {
    "renamed": renamed,
    "arguments": other_arguments,
    "helper": no_helper,
    "function": lambda _state: delattr(tool(), "session_search"),
    "schema": lambda _state: delattr(tool(), "SESSION_SEARCH_SCHEMA"),
    "module": lambda _state: sys.modules.update({"tools.session_search_tool": None}),
}
SCENARIOS = {
    "orders": orders,
    "below": below,
    "above": lambda: {str(wraps): above(wraps) for wraps in (True, False)},
    "copies": copies,
    **{name: functools.partial(lacking, name) for name in CHANGES},
}

with contextlib.redirect_stdout(io.StringIO()):
    found = {name: SCENARIOS[name]() for name in sys.argv[2:]}
print(json.dumps(found))
