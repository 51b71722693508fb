"""``hermes semantic`` in the terminal and ``/semantic`` in the chat, where plugins may add them.

Everything is imported when a command is run: Hermes registers plugins at every start.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

NAME = "semantic"
_WHAT = "semantic recall: status, search, backfill, doctor"
_HINT = "[status | search WORDS]"


def register(ctx: Any) -> None:
    """Add our commands to what *ctx*, Hermes's plugin context, can take; safe to call again."""
    if _takes(ctx, "register_cli_command", ("name", "help", "setup_fn", "handler_fn")):
        ctx.register_cli_command(NAME, help=_WHAT, setup_fn=_set_up, handler_fn=_handle)
    if _takes(ctx, "register_command", ("name", "handler")):
        more: dict[str, Any] = {"description": _WHAT, "args_hint": _HINT}
        known = inspect.signature(ctx.register_command).parameters
        wanted = {key: value for key, value in more.items() if key in known}
        ctx.register_command(NAME, handler=_answer, **wanted)


def _takes(ctx: Any, name: str, wanted: tuple[str, ...]) -> bool:
    method: Callable[..., Any] | None = getattr(ctx, name, None)
    return method is not None and set(wanted) <= set(inspect.signature(method).parameters)


def _set_up(parser: argparse.ArgumentParser) -> None:
    from .cli import semantic_parser

    semantic_parser(parser)


def _handle(args: argparse.Namespace) -> None:
    """Run ``hermes semantic …``; not every release makes an exit code of what is returned."""
    from . import cli, patched_by

    code = cli.semantic(args, patched_by())
    if code:
        sys.exit(code)


def _answer(raw_args: str = "") -> Any:
    """Return the answer to ``/semantic …``, a coroutine where a loop must not wait for it."""
    from . import patched_by
    from .inside import chat

    work = functools.partial(chat.answer, raw_args, patched_by())
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return asyncio.to_thread(work)
