"""Long-term memory for Hermes Agent. Written by `hermes-patch apply --memory`.

A MemoryProvider; its code is that of the plugin hermes_patch, which lies beside this folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

_PACKAGE = "hermes_patch"
_FOLDER = Path(__file__).resolve().parent.parent / _PACKAGE / _PACKAGE


def _load() -> Any:
    if _PACKAGE not in sys.modules:
        if not (_FOLDER / "__init__.py").is_file():
            raise ImportError(f"{_FOLDER} is missing; run `hermes-patch apply --memory` again")
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{_FOLDER} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules[_PACKAGE] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(_PACKAGE, None)
            raise
    return importlib.import_module(f"{_PACKAGE}.memory.provider").make()


def _absent(reason: str) -> Any:
    """Return a provider that does nothing but say why."""
    base = importlib.import_module("agent.memory_provider").MemoryProvider
    members = {
        "name": property(lambda self: "semantic"),
        "is_available": lambda self: False,
        "unavailable_reason": lambda self: reason,
        "initialize": lambda self, session_id, **kwargs: None,
        "get_tool_schemas": lambda self: [],
    }
    return type("AbsentProvider", (base,), members)()


def register(ctx: Any) -> None:
    """Called by Hermes's loader of memory providers; never raises an Exception."""
    if not hasattr(ctx, "register_memory_provider"):
        return
    try:
        provider = _load()
    except Exception as error:
        reason = (
            f"{type(error).__name__}: {error}"
            if isinstance(error, ImportError)
            else (type(error).__name__)
        )
        logging.getLogger(_PACKAGE).warning("long-term memory is off (%s)", reason)
        provider = _absent(reason)
    ctx.register_memory_provider(provider)
