"""What Hermes offers to be patched, looked up; a seam that is missing is a refusal, no error."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from .errors import HostError, SeamMissing
from .guard import Guard
from .patching import ALREADY, Entry, Patch, Refusal

TOOL = "tools.session_search_tool"
DESCRIPTION_NOTE = (
    " Semantic recall is on: ask in plain language, in any wording, in Chinese or English; a "
    "past conversation is found by its meaning too, so the words need not match. Each result "
    "says in search_type whether keyword, vector or both found it."
)
_READ = ("query", "limit", "offset")
"""The arguments of ``search_messages`` without which a call cannot be understood."""


def session_db() -> type:
    """Return Hermes's SessionDB; raises HostError, ImportError."""
    found = getattr(importlib.import_module("hermes_state"), "SessionDB", None)
    if not isinstance(found, type):
        raise HostError("hermes_state has no SessionDB; this version of Hermes is not known")
    return found


def tool() -> Any:
    """Return the module of the ``session_search`` tool, None where it cannot be imported."""
    try:
        return importlib.import_module(TOOL)
    except ImportError:
        return None


def no_tool() -> Patch:
    """Return the patch that is refused because there is no such module."""
    return Patch(None, "", _same, "tool", refusal=f"{TOOL} cannot be imported")


def search(owner: type, make: Callable[[Any], Any]) -> Patch:
    """Return the patch of ``search_messages``; refused where its arguments are others."""
    reason = ""
    method = getattr(owner, "search_messages", None)
    known = inspect.signature(method).parameters if method is not None else {}
    absent = [name for name in _READ if name not in known]
    open_ended = any(it.kind is inspect.Parameter.VAR_KEYWORD for it in known.values())
    if method is not None and absent and not open_ended:
        reason = f"SessionDB.search_messages takes no {', '.join(absent)} in this version"
    return Patch(owner, "search_messages", make, "search", refusal=reason)


def description(module: Any) -> list[Patch]:
    """Return the patch of the tool's description, none where it has our sentence already."""
    schema = getattr(module, "SESSION_SEARCH_SCHEMA", None)
    if not isinstance(schema, dict) or not isinstance(schema.get("description"), str):
        reason = "SESSION_SEARCH_SCHEMA has no description in this version"
        return [Patch(module, "SESSION_SEARCH_SCHEMA", _same, "description", refusal=reason)]
    if DESCRIPTION_NOTE in schema["description"]:
        return []
    return [Patch(Entry(schema), "description", _with_note, "description")]


def tell(guard: Guard, refusals: Iterable[Refusal], capabilities: Iterable[str]) -> None:
    """Let ``status`` of another process know what is missing, and what is there again."""
    for capability in capabilities:
        guard.succeeded(f"seam {capability}")
    for refusal in refusals:
        if refusal.reason.endswith(ALREADY):
            continue  # another copy of ours does it
        reason = SeamMissing(f"{refusal.capability} is off: {refusal.reason}")
        guard.note(f"seam {refusal.capability}", reason)


def _same(original: Any) -> Any:
    return original


def _with_note(text: str) -> str:
    return text + DESCRIPTION_NOTE
