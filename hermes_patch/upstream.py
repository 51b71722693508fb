"""What is asked of Hermes's own code beside its searches: home, redactor, write helper."""

from __future__ import annotations

import importlib
import inspect
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def home() -> Path:
    """Return the home of the current profile, which a thread or task may have of its own."""
    return Path(importlib.import_module("hermes_constants").get_hermes_home())


def redact(text: str) -> str:
    """Return *text* without what Hermes's own redactor calls a secret; *text* without one."""
    try:
        redactor = importlib.import_module("agent.redact").redact_sensitive_text
    except (ImportError, AttributeError):
        return text
    known = inspect.signature(redactor).parameters
    wanted = {"force": True, "redact_url_credentials": True}
    return str(redactor(text, **{name: on for name, on in wanted.items() if name in known}))


def write(handle: Any, change: Callable[[sqlite3.Connection], T]) -> T:
    """Run *change* in one transaction of a SessionDB; raises what its write helper raises.

    The host merges its full-text index and truncates its log after so many writes. Ours are no
    reason for either, so they leave its count as it was. Without a helper we do what it does.
    """
    helper = getattr(handle, "_execute_write", None)
    if helper is None:
        return _in_transaction(handle, change)
    unbound = getattr(helper, "__func__", None)
    if unbound is None or not isinstance(getattr(handle, "_write_count", None), int):
        return helper(change)  # type: ignore[no-any-return]
    return unbound(_Uncounted(handle), change)  # type: ignore[no-any-return]


def _in_transaction(handle: Any, change: Callable[[sqlite3.Connection], T]) -> T:
    with handle._lock:
        conn = handle._conn
        conn.execute("BEGIN IMMEDIATE")
        try:
            result = change(conn)
        except BaseException:
            conn.rollback()
            raise
        conn.commit()
        return result


class _Uncounted:
    """A SessionDB to those who ask, but with a write count of its own."""

    def __init__(self, handle: Any) -> None:
        vars(self).update(_handle=handle, _write_count=0)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance() and super() ask for it
        return type(vars(self)["_handle"])

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_handle"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_write_count":
            vars(self)[name] = value
        else:
            setattr(vars(self)["_handle"], name, value)
