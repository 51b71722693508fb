"""A YAML loader, whichever there is: Hermes brings PyYAML or, since lately, ruamel.yaml."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def find() -> tuple[Callable[[str], Any], type[Exception]]:
    """Return a safe loader of text and the error it raises."""
    try:
        import yaml
    except ImportError:
        ruamel = importlib.import_module("ruamel.yaml")
        return ruamel.YAML(typ="safe", pure=True).load, ruamel.error.YAMLError
    return yaml.safe_load, yaml.YAMLError
