"""Hermes's door: the plugin folder's ``__init__.py`` calls :func:`register`."""

from __future__ import annotations

from typing import Any


def register(ctx: Any) -> None:
    """Patch this process. Hermes may call it several times; so may several profiles."""
    from . import install, note

    problem = _offer_commands(ctx)  # first: they say what is wrong where install() fails
    install()
    if problem is not None:
        note("commands", problem)


def _offer_commands(ctx: Any) -> Exception | None:
    try:
        from . import commands

        commands.register(ctx)
    except Exception as error:
        return error
    return None
