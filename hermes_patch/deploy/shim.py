"""Semantic recall for Hermes Agent. Written by `hermes-patch apply`; changes here are lost.

Loads the package that lies beside this file, without touching ``sys.path``, and hands over.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

_PACKAGE = "hermes_patch"


def _load() -> None:
    if _PACKAGE in sys.modules:
        return
    folder = Path(__file__).parent / _PACKAGE
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(_PACKAGE, None)
        raise


def register(ctx: Any) -> None:
    """Called by Hermes, possibly more than once; never raises an Exception."""
    try:
        _load()
        importlib.import_module(f"{_PACKAGE}.plugin").register(ctx)
    except Exception as error:
        # Only our own errors are known to hold no text and no key.
        ours = type(error).__module__.partition(".")[0] == _PACKAGE
        detail = f": {error}" if ours else ""
        logging.getLogger(_PACKAGE).warning(
            "semantic recall is off (%s%s)", type(error).__name__, detail
        )
