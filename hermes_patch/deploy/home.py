"""A Hermes home that may be changed: checked, and locked against a second one of us."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import DeployError
from . import folder


def checked(home: Path) -> Path:
    """Return *home* as an absolute path; raises DeployError when it cannot be used."""
    path = Path(os.path.abspath(home.expanduser()))
    if not path.exists():
        raise DeployError(
            f"{path}: does not exist; start Hermes once, or name its home with --hermes-home"
        )
    if not path.is_dir():
        raise DeployError(f"{path}: expected a folder, found a file; see --hermes-home")
    return path


@contextlib.contextmanager
def changing(home: Path, *, dry_run: bool = False) -> Iterator[None]:
    """Hold *home* for one run and clear away what a killed one left.

    What the disk says inside becomes a DeployError.
    """
    if not os.access(home, os.W_OK | os.X_OK):
        raise DeployError(f"{home}: not writable; nothing was changed")
    with _locked(home):
        try:
            if not dry_run:
                folder.recover(home)
            yield
        except OSError as error:
            where = error.filename2 or error.filename or home
            raise DeployError(
                f"{os.fsdecode(where)}: {error.strerror or type(error).__name__}; "
                "what had been done was taken back"
            ) from None


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DeployError(f"{home}: another hermes-patch is at work here; wait for it") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)
