"""The tool ``provider_memory``: what the agent itself may do with the notes."""

from __future__ import annotations

import json
from typing import Any

from ..errors import HermesPatchError
from ..guard import explain
from . import recall
from .core import Memory
from .scopes import GLOBAL, visible

NAME = "provider_memory"
SCHEMA: dict[str, Any] = {
    "name": NAME,
    "description": (
        "Long-term memory without a size limit, searched by meaning. Use it for facts worth "
        "keeping that need not stand in every prompt. add: keep a fact (one or two sentences, "
        "with all names and numbers). search: find notes by what they say, with their similarity. "
        "forget: take a note out, by id or by its exact text. list: the newest notes."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": ["add", "search", "forget", "list"]},
            "text": {"type": "string", "description": "the fact to add, or to forget"},
            "query": {"type": "string", "description": "what to search for"},
            "id": {"type": "integer", "description": "the note to forget"},
            "scope": {
                "type": "string",
                "enum": ["global", "project"],
                "description": "global: seen everywhere; project: in this git repository only",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 50},
        },
        "required": ["action"],
    },
}


def call(memory: Memory, args: dict[str, Any], project: str | None) -> str:
    """Carry out one call and return its result as JSON; never raises an Exception."""
    try:
        return json.dumps(_call(memory, args, project), ensure_ascii=False)
    except HermesPatchError as error:
        return failed(str(error))
    except Exception as error:
        memory.engine.guard.note("tool", error)
        return failed(explain(error))


def failed(reason: str) -> str:
    """Return the result of a call that failed."""
    return json.dumps({"success": False, "error": reason}, ensure_ascii=False)


def _call(memory: Memory, args: dict[str, Any], project: str | None) -> dict[str, Any]:
    action = str(args.get("action") or "")
    limit = args.get("limit")
    limit = limit if isinstance(limit, int) and 1 <= limit <= 50 else None
    text = args.get("text") or args.get("content") or args.get("query") or ""
    if action == "add":
        added = memory.add(str(text), _scope(args, project))
        result: dict[str, Any] = {"success": True, **added.to_json()}
        if added.outcome == "duplicate":
            result["message"] = "skipped: a note that says the same is there already"
        return result
    if action == "search":
        query = str(args.get("query") or text)
        hits = recall.search(memory, query, project, k=limit)
        return {"success": True, "results": [hit.to_json() for hit in hits]}
    if action == "forget":
        return _forget(memory, args, str(text), project)
    if action == "list":
        found = memory.listed(visible(project), limit=limit or 20)
        return {"success": True, "notes": [note.to_json() for note in found]}
    raise HermesPatchError(f"action {action!r} is none of add, search, forget, list")


def _scope(args: dict[str, Any], project: str | None) -> str:
    if args.get("scope") != "project":
        return GLOBAL
    if project is None:
        raise HermesPatchError("this session is in no git repository; use scope global")
    return project


def _forget(memory: Memory, args: dict[str, Any], text: str, project: str | None) -> dict[str, Any]:
    number = args.get("id")
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if not isinstance(number, int) and not text:
        raise HermesPatchError("forget needs the id or the exact text of a note")
    gone = memory.forget(number if isinstance(number, int) else text, visible(project))
    if not gone:
        raise HermesPatchError("there is no such note; search or list tells the ids")
    return {"success": True, "forgot": [note.to_json() for note in gone]}
