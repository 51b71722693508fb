"""Hermes's door: the plugin folder's ``__init__.py`` calls :func:`register`."""

from __future__ import annotations

from typing import Any


def register(ctx: Any) -> None:
    """Patch this process. Hermes may call it several times; so may several profiles."""
    from . import install

    install()
