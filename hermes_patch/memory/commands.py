"""``hermes-patch memory …``, inside Hermes's Python."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HermesPatchError

if TYPE_CHECKING:
    from .core import Memory

HELP = "notes of the long-term memory: add, search, list, forget, reconcile, export, import, stats"
FORMAT = "hermes-patch-memory"

Result = tuple[dict[str, Any], list[str]]


def add_options(memory: argparse.ArgumentParser, home: argparse.ArgumentParser) -> None:
    """Give the command its own commands."""
    verbs = memory.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help_: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help_, description=help_, parents=[home])
        made.add_argument(
            "--project", metavar="DIR", help="in the git repository around DIR, not global"
        )
        return made

    verb("add", "keep a note").add_argument("text", nargs="+", metavar="TEXT")
    search = verb("search", "find notes by what they say")
    search.add_argument("text", nargs="+", metavar="QUERY")
    search.add_argument("--limit", type=int, default=None, metavar="N")
    listing = verb("list", "show notes, the newest first")
    listing.add_argument("--limit", type=int, default=50, metavar="N")
    listing.add_argument("--all", action="store_true", help="every scope, and superseded notes")
    verb("forget", "take a note out, by its id or its exact text").add_argument(
        "text", nargs="+", metavar="ID|TEXT"
    )
    verb("reconcile", "supersede what MEMORY.md and USER.md made obsolete, join duplicates")
    verb("export", "write all notes as JSON lines").add_argument(
        "file", nargs="?", default="-", metavar="FILE"
    )
    verb("import", "read notes from JSON lines, or one a line").add_argument(
        "file", nargs="?", default="-", metavar="FILE"
    )
    verb("stats", "count notes and vectors")


def run(args: argparse.Namespace, home: Path) -> int:
    """Run one verb on the notes of *home* and print what came of it."""
    from ..inside import show, vendor_of
    from . import hosting
    from .core import Memory

    memory = Memory(hosting.load_options(home), vendor_of(home))
    try:
        data, lines = _VERBS[args.verb](memory, args, home)
    finally:
        memory.close()
    show(args, {"ok": True, **data}, lines)
    return 0


def _project(args: argparse.Namespace) -> str | None:
    from . import scopes

    if not args.project:
        return None
    found = scopes.project_of(args.project)
    if found is None:
        raise HermesPatchError(f"--project {args.project}: is in no git repository")
    return found


def _add(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    added = memory.add(" ".join(args.text), _project(args) or "global")
    near = "" if added.similarity is None else f" ({added.similarity:.2f})"
    later = "" if added.vector else f"; its vector follows: {added.why}"
    return added.to_json(), [f"{added.outcome}{near}: {_line(added.note.to_json())}{later}"]


def _search(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    from . import recall

    hits = recall.search(memory, " ".join(args.text), _project(args), k=args.limit)
    found = [hit.to_json() for hit in hits]
    lines = [f"{hit['similarity']:.2f}  {_line(hit)}" for hit in found]
    return {"results": found}, lines or ["Nothing found."]


def _list(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    from . import scopes

    seen = None if args.all else scopes.visible(_project(args))
    found = [n.to_json() for n in memory.listed(seen, tombstones=args.all, limit=args.limit)]
    return {"notes": found}, [_line(note) for note in found] or ["No notes."]


def _forget(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    text = " ".join(args.text)
    gone = [n.to_json() for n in memory.forget(int(text) if text.isdecimal() else text)]
    if not gone:
        raise HermesPatchError("there is no such note; `hermes-patch memory list` tells the ids")
    return {"forgot": gone}, [f"forgot {_line(note)}" for note in gone]


def _reconcile(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    from . import hosting, mirror, reconcile

    def entries() -> dict[str, list[str]] | None:
        return hosting.facts(home)

    mirror.drain(memory, entries)
    memory.refresh()
    judge = hosting.judge if memory.options.judge else None
    done = reconcile.run(memory, entries(), judge)
    counts = ", ".join(f"{name} {done[name]}" for name in done if name != "proposals")
    pairs = [
        f"perhaps obsolete ({pair['similarity']:.2f}): {_line(pair['older'])}\n"
        f"    because of {_line(pair['newer'])}"
        for pair in done["proposals"]
    ]
    return done, [counts, *pairs]


def _export(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    found = [n.to_json() for n in reversed(memory.listed(None, tombstones=True, limit=-1))]
    rows = [json.dumps({"format": FORMAT, **note}, ensure_ascii=False) for note in found]
    if args.file == "-":
        return {"notes": found}, rows
    Path(args.file).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return {"file": args.file, "count": len(rows)}, [f"{len(rows)} notes are in {args.file}"]


def _import(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    try:
        raw = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HermesPatchError(f"{args.file}: cannot be read ({type(error).__name__})") from None
    wanted = [_parsed(line, n, args) for n, line in enumerate(raw.splitlines(), 1) if line.strip()]
    counts: dict[str, int] = {}
    for text, scope, superseded in wanted:
        outcome = "superseded" if superseded else memory.add(text, scope).outcome
        counts[outcome] = counts.get(outcome, 0) + 1
    told = ", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing to import"
    return {"counts": counts}, [told]


def _parsed(line: str, number: int, args: argparse.Namespace) -> tuple[str, str, bool]:
    """Return text, scope and whether a line is a tombstone; nothing is imported if one is wrong."""
    from .core import check

    scope = _project(args) or "global"
    text, superseded = line.strip(), False
    if text.startswith("{"):
        try:
            data = json.loads(text)
            text, scope = str(data["text"]), str(data.get("scope") or scope)
            superseded = data.get("superseded") is not None
        except (ValueError, KeyError, TypeError):
            raise HermesPatchError(f"line {number}: expected JSON with a text") from None
    try:
        return check(text, scope), scope, superseded
    except HermesPatchError as error:
        raise HermesPatchError(f"line {number}: {error}; nothing was imported") from None


def _stats(memory: Memory, args: argparse.Namespace, home: Path) -> Result:
    data = memory.stats()
    return data, [f"{name}: {value}" for name, value in data.items()]


def _line(note: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d", time.localtime(note["created"]))
    marks = [note["scope"], *(["canonical"] if note["canonical"] else [])]
    marks += [note["reason"] or "superseded"] if "superseded" in note else []
    return f"#{note['id']}  {when}  [{', '.join(marks)}]  {' '.join(note['text'].split())}"


_VERBS: dict[str, Callable[[Any, argparse.Namespace, Path], Result]] = {
    "add": _add,
    "search": _search,
    "list": _list,
    "forget": _forget,
    "reconcile": _reconcile,
    "export": _export,
    "import": _import,
    "stats": _stats,
}
