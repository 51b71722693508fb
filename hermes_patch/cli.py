"""The command ``hermes-patch``: results on stdout, progress and notes on stderr.

Exit codes: 0 done, 1 failed or unhealthy, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import bench, config, evaluation, scheduling, upstream
from ._version import __version__
from .errors import HermesPatchError
from .guard import explain
from .memory import commands as memory

if TYPE_CHECKING:
    from .host import Host

INSIDE = {
    "status": "show what is indexed, with which model, and what failed",
    "doctor": "check everything recall depends on, and say what to do",
    "backfill": "embed the history that has no vectors yet",
    "search": "search past conversations",
}
"""The commands that ``hermes semantic`` has too."""
_OWN_FLOOR = (
    "With a floor of your own, what the best hit must reach is the floor too (see opening in "
    "docs/configuration.md); take the line out to go back."
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="hermes-patch", description="Semantic recall for Hermes Agent."
    )
    top.add_argument("--version", action="version", version=f"hermes-patch {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = _shared_options()

    def command(name: str, help_: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help_, description=help_, parents=[shared])

    _deploy_options(command)
    for name in INSIDE:
        _inside_options(command(name, INSIDE[name]), name)
    command("catch-up", "embed what is new since apply, quietly; the cron job runs it")
    cron = command("cron", "have what is new embedded every hour, by a job outside Hermes")
    scheduling.add_options(cron)
    calibrate = command("calibrate", "estimate the similarity floor from your own messages")
    calibrate.add_argument("--write", action="store_true", help="put the value into config.yaml")
    evaluation.add_options(
        command("eval", "measure how well sets of questions find their conversations")
    )
    bench.add_options(command("bench", "measure how fast the nearest vectors are found"))
    memory.add_options(
        commands.add_parser("memory", help=memory.HELP, description=memory.HELP), shared
    )
    demo = commands.add_parser(
        "demo", help="a sample history on a real Hermes, searched before and after"
    )
    demo.add_argument("--json", action="store_true", help="print the result as JSON")
    demo.add_argument("--keep", metavar="DIR", help="leave the sample home in DIR")
    return top


def semantic_parser(parent: argparse.ArgumentParser) -> None:
    """Add the commands of ``hermes semantic`` to a parser that Hermes made for it."""
    commands = parent.add_subparsers(dest="semantic_command", required=True, metavar="COMMAND")
    for name, help_ in INSIDE.items():
        command = commands.add_parser(name, help=help_, description=help_)
        command.add_argument("--json", action="store_true", help="print the result as JSON")
        _inside_options(command, name)


def _shared_options() -> argparse.ArgumentParser:
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument("--hermes-home", metavar="DIR", help="default: $HERMES_HOME or ~/.hermes")
    home.add_argument("--hermes-python", metavar="EXE", help="the Python that runs Hermes")
    home.add_argument("--json", action="store_true", help="print the result as JSON")
    return home


def _deploy_options(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    apply = command("apply", "put the plugin into a Hermes home, enable it, migrate the database")
    apply.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
    apply.add_argument("--memory", action="store_true", help="put the long-term memory in as well")
    revert = command("revert", "take back everything that apply did")
    revert.add_argument("--purge", action="store_true", help="drop the vectors and our tables too")


def _inside_options(command: argparse.ArgumentParser, name: str) -> None:
    if name == "doctor":
        command.add_argument("--fix", action="store_true", help="mend what is safe to mend")
    elif name == "backfill":
        _backfill_options(command)
    elif name == "search":
        _search_options(command)


def _backfill_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--limit", type=_positive, metavar="N", help="at most N messages")
    command.add_argument("--since", metavar="DATE", help="only messages since YYYY-MM-DD[THH:MM]")
    command.add_argument("--batch-size", type=_positive, metavar="N", help="texts a request")
    command.add_argument(
        "--retry-failed", action="store_true", help="try messages again that failed for good"
    )
    command.add_argument("--dry-run", action="store_true", help="count only, send nothing")


def _search_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("query", nargs="+", metavar="QUERY")
    command.add_argument("--mode", choices=("hybrid", "vector", "keyword"), default="hybrid")
    command.add_argument("--limit", type=_positive, default=10, metavar="N")


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(words)
    logging.getLogger("hermes_patch").addHandler(logging.NullHandler())
    return _in_plain_words(args, lambda: _run(args, words, alone=argv is None))


def semantic(args: argparse.Namespace, host: Host | None) -> int:
    """Run a command of ``hermes semantic`` in Hermes's own process; returns its exit code.

    *host* is what has patched this process, None where nothing has.
    """
    args = argparse.Namespace(**vars(args), program="hermes semantic")
    args.command = args.semantic_command
    return _in_plain_words(args, lambda: _run_here(args, upstream.home(), host))


def _in_plain_words(args: argparse.Namespace, run: Callable[[], int]) -> int:
    try:
        code = int(run())
        sys.stdout.flush()
        return code
    except HermesPatchError as error:
        return _fail(args, str(error))
    except sqlite3.Error as error:
        return _fail(args, f"state.db: {explain(error)}; `hermes-patch doctor` looks closer")
    except KeyboardInterrupt:
        return _fail(args, "interrupted")
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(args: argparse.Namespace, message: str) -> int:
    if getattr(args, "json", False):
        print(json.dumps({"ok": False, "error": message}, ensure_ascii=False))
    program = getattr(args, "program", "hermes-patch")
    print(f"{program} {args.command}: {message}", file=sys.stderr)
    return 1


def _run(args: argparse.Namespace, words: list[str], *, alone: bool) -> int:
    """Run one command; ``alone`` says that this process is for nothing else."""
    if args.command == "demo":
        from . import demo

        return demo.run(as_json=args.json, keep=Path(args.keep) if args.keep else None)
    home = config.hermes_home(args.hermes_home)
    python = Path(args.hermes_python) if args.hermes_python else None
    if args.command in ("apply", "revert"):
        return _deploy(args, home, python)
    if args.command in ("status", "doctor"):
        return _examine(args, home, python)
    if args.command == "cron":
        return scheduling.command(args, home, python)
    if args.command == "bench":
        return bench.command(args, python)
    if args.command == "eval":
        return evaluation.command(args, python)
    from . import inside

    if args.command == "calibrate":
        return _calibrate(args, home, python)
    if not inside.is_here():
        return inside.reexecute(words, home, python, replace=alone)
    os.environ["HERMES_HOME"] = str(home)
    return _run_here(args, home, None)


def _run_here(args: argparse.Namespace, home: Path, host: Host | None) -> int:
    """Run a command under Hermes's Python."""
    if args.command in ("status", "doctor"):
        return _examine(args, home, None)
    if args.command == "catch-up":
        from .inside import catching_up

        return catching_up.catch_up(args, home)
    if args.command == "memory":
        return memory.run(args, home)
    if args.command == "backfill":
        from .inside import filling

        return filling.backfill(args, home)
    from .inside import finding

    return finding.search(args, home, host)


def _examine(args: argparse.Namespace, home: Path, python: Path | None) -> int:
    if args.command == "status":
        from . import overview

        data = overview.gather(home, python)
        _show(args, data, overview.lines(data))
        return 0 if data["ok"] else 1
    try:
        from . import doctor
    except ImportError as error:
        raise HermesPatchError(
            f"{error.name} is not in Hermes's Python; run `hermes-patch doctor` where it is"
        ) from None
    report = doctor.run(home, fix=args.fix, hermes_python=python)
    _show(args, report.to_json(), report.lines())
    return 0 if report.healthy else 1


def _calibrate(args: argparse.Namespace, home: Path, python: Path | None) -> int:
    from . import calibration, inside

    if inside.is_here():
        from .inside import calibrating

        os.environ["HERMES_HOME"] = str(home)
        data = calibrating.measure(home)
    else:
        data = inside.ask(["calibrate", "--hermes-home", str(home)], home, python)
    lines = calibration.lines(data)
    if args.write:
        from . import deploy

        path = deploy.set_value(home, "minSimilarity", data["recommended"])
        data["written"] = True
        lines += ["", f"minSimilarity: {data['recommended']:.2f} is now in {path}.", _OWN_FLOOR]
    _show(args, data, lines)
    return 0


def _deploy(args: argparse.Namespace, home: Path, python: Path | None) -> int:
    from . import deploy

    if args.command == "apply":
        report = deploy.apply(home, hermes_python=python, dry_run=args.dry_run, memory=args.memory)
    else:
        report = deploy.revert(home, purge=args.purge, hermes_python=python)
    _show(args, report.to_json(), report.lines())
    return 0


def _show(args: argparse.Namespace, data: dict[str, Any], lines: list[str]) -> None:
    print(json.dumps(data, ensure_ascii=False, indent=2) if args.json else "\n".join(lines))
