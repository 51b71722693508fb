"""``/semantic`` in the chat: a few calm lines, soon, whatever happens."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .. import upstream
from ..errors import BudgetExceeded, HermesPatchError
from ..guard import explain, run_within
from . import PLUGIN

if TYPE_CHECKING:
    from ..host import Host

SECONDS = 15.0
"""Most that a chat waits for an answer."""
HITS = 5
ELSEWHERE = ("backfill", "doctor")
_NO_WORDS = "Say what to look for: /semantic search WORDS"
_USAGE = "/semantic shows the state of semantic recall; /semantic search WORDS searches by meaning."


def answer(raw_args: str, host: Host | None) -> str:
    """Return what to say to ``/semantic raw_args``; never raises an Exception."""
    word, _, rest = str(raw_args or "").strip().partition(" ")
    try:
        return run_within(SECONDS, lambda: _answer(word.lower(), rest.strip(), host), "/semantic")
    except BudgetExceeded:
        return f"Semantic recall had no answer within {SECONDS:g} s; `hermes semantic` may wait."
    except ImportError:
        return "Semantic recall was taken away or replaced; restart Hermes."
    except HermesPatchError as error:
        return f"Semantic recall: {error}"
    except Exception as error:  # only our own errors are known to hold no text and no key
        return f"Semantic recall: {explain(error)}; `hermes semantic doctor` looks closer."


def _answer(word: str, rest: str, host: Host | None) -> str:
    home = upstream.home()
    if not (home / PLUGIN / "applied.json").is_file():
        return f"Semantic recall is not part of {home}; `hermes-patch apply` adds it."
    if word in ("", "status"):
        return "\n".join(_status())
    if word == "search":
        return "\n".join(_search(rest, host)) if rest else _NO_WORDS
    if word in ELSEWHERE:
        return f"Run this in a terminal: hermes semantic {word}"
    return _USAGE


def _status() -> list[str]:
    from .. import overview

    data = overview.gather(upstream.home())
    return overview.summary(data)


def _search(words: str, host: Host | None) -> list[str]:
    from . import finding

    args = argparse.Namespace(query=[words], mode="hybrid", limit=HITS)
    data: dict[str, Any] = finding.find(args, upstream.home(), host)
    return finding.lines(data)
