"""What of a text or a query is sent, with the secrets taken out before it is cut.

A secret that is cut in two is no longer recognised in either half.
"""

from __future__ import annotations

from dataclasses import replace

from .. import redaction
from .. import text as texts
from ..config import Settings


def chunks(text: str, settings: Settings) -> list[texts.Chunk]:
    """Return the chunks of *text* as they may leave for the server of *settings*.

    The offsets are those of *text*; what lies between them may be marked as redacted.
    """
    cut = texts.chunks(text, settings.max_tokens)
    if len(cut) == 1 or not settings.redact or settings.is_loopback:
        return cut
    hidden = redaction.spans(text)
    if not hidden:
        return cut
    return [replace(c, text=redaction.masked(text, hidden, c.start, c.end)) for c in cut]


def query(raw: str, settings: Settings) -> str:
    """Return *raw*, a query as it was typed, without secrets if it goes to another machine.

    To be called before anything else: a secret without its quotes, or cut off, is not
    recognised any more.
    """
    if not settings.redact or settings.is_loopback:
        return raw
    return redaction.redact(raw)
