"""What the child executes: ``python -I [-S] main.py --path FOLDER … --idle SECONDS``.

Loads its own folder as a package of another name, so that neither Hermes nor the rest of
this package is ever imported here.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

_NAME = "hermes_patch_child"


def _load_serve() -> Any:
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise SystemExit("the child's own files cannot be loaded")
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{_NAME}.serve")


def _take_pipes() -> tuple[int, int]:
    """Keep the two pipes to ourselves; whatever prints to stdout ends on stderr."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return reading, writing


def _count_sockets() -> list[str]:
    events: list[str] = []

    def note(event: str, _args: object) -> None:
        if event.startswith("socket."):
            events.append(event)

    sys.addaudithook(note)
    return events


def main() -> None:
    """Serve until stdin ends, the idle time is over or the parent is gone."""
    reading, writing = _take_pipes()
    # Ctrl-C in the terminal is for Hermes; the end of stdin is what ends the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--last-path", action="append", default=[])
    parser.add_argument("--idle", type=float, default=600.0)
    parser.add_argument("--count-sockets", action="store_true")
    options = parser.parse_args()
    sockets = _count_sockets() if options.count_sockets else None
    sys.path[:0] = options.path
    sys.path += options.last_path
    _load_serve().serve(reading, writing, options.idle, sockets)


if __name__ == "__main__":
    main()
