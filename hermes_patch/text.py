"""From a row of ``messages`` to the texts that are embedded.

message -> text -> chunks. Only words people or the agent wrote become vectors: images,
tool calls and blank or purely formal messages ("ok", 继续) do not.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

JSON_PREFIX = "\x00json:"
"""What Hermes puts before content that is a list or a mapping (0.13 and later)."""

OVERLAP = 0.1
"""Share of a chunk that is repeated at the start of the next one."""

HALF_FULL = 0.5
"""Share of a chunk that is enough for it to end where its paragraph does."""

_FORMALITIES = frozenset(
    """ok okay k yes y no n yep nope sure thanks thank you thx ty please continue go on
    go ahead proceed next done stop hi hello hey good great nice cool perfect yes please
    sounds good got it
    好 好的 好吧 好了 嗯 嗯嗯 是 是的 对 对的 不 不是 不用 可以 行 没问题 谢谢 多谢 感谢 继续 下一步
    开始 停 停止 收到 明白 知道了 了解 你好 您好 请继续 哦 哈哈""".split()
) | {"thank you", "go on", "go ahead", "yes please", "sounds good", "got it"}
_CONTENT = re.compile(r"[^\W\d_]", re.UNICODE)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0002ffff]")
_BOUNDARY = re.compile(r"\n\s*\n|\n|(?<=[。！？；!?;])|(?<=[.])\s")
_PIECES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]")


@dataclass(frozen=True)
class Chunk:
    """A part of a text: ``text == whole[start:end]``, offsets in characters."""

    start: int
    end: int
    text: str = field(repr=False)


def message_text(content: object) -> str:
    """Return the words of a message's stored *content*, "" where there are none.

    Lists are stored as JSON; only their parts of type "text" count, joined by newlines.
    Lone surrogates become U+FFFD, NUL characters disappear.
    """
    if isinstance(content, bytes):
        content = content.decode("utf-8", "replace")
    if not isinstance(content, str):
        return ""
    if content.startswith(JSON_PREFIX):
        content = _text_of_parts(content[len(JSON_PREFIX) :])
    clean = content.replace("\x00", "")
    return clean.encode("utf-8", "surrogatepass").decode("utf-8", "replace").strip()


def _text_of_parts(encoded: str) -> str:
    try:
        decoded = json.loads(encoded)
    except (ValueError, RecursionError):
        return ""
    parts = decoded if isinstance(decoded, list) else [decoded]
    texts = [_text_of_part(part) for part in parts]
    return "\n".join(text for text in texts if text)


def _text_of_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type", "text") == "text":
        text = part.get("text")
        return text if isinstance(text, str) else ""
    return ""


def text_hash(text: str) -> str:
    """Return the fingerprint of *text* under which its vectors are re-used (32 hex digits)."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_embeddable(text: str) -> bool:
    """Tell whether *text* means enough for a vector.

    A matter of meaning, not of length: 系统空间不够 has six characters. Left out are texts
    without a word (blank, punctuation, emoji, digits only), single letters, and
    formalities such as "ok" or 继续.
    """
    letters = len(list(islice(_CONTENT.finditer(text), 3)))
    if letters < 2 or (letters < 3 and not _CJK.search(text)):
        return False
    if len(text) > 40:
        return True
    words = unicodedata.normalize("NFKC", text).lower().strip(" \t\n.,!?。，！？~～…:：;；")
    return words not in _FORMALITIES


def estimate_tokens(text: str) -> int:
    """Return a cautious estimate of how many tokens a multilingual model makes of *text*."""
    total = 0
    for piece in _PIECES.findall(text):
        total += 1 + (len(piece) - 1) // 4 if piece.isalpha() and piece.isascii() else 1
    return total


def chunks(text: str, max_tokens: int) -> list[Chunk]:
    """Cut *text* into overlapping chunks of at most *max_tokens* estimated tokens.

    Cuts fall on paragraphs, then sentences (Chinese punctuation included), then anywhere;
    nothing is left out: the chunks together cover every character that is not blank. A chunk
    that is half full ends with its paragraph, so that the next one is not diluted by it.
    """
    if len(text) <= max_tokens or estimate_tokens(text) <= max_tokens:
        return [Chunk(0, len(text), text)]
    result: list[Chunk] = []
    window: list[tuple[int, int, int]] = []
    size = 0
    for start, end, tokens in _segments(text, max_tokens):
        if size >= max_tokens * HALF_FULL and text[start - 1] == "\n":
            result.append(_chunk(text, window))
            window, size = [], 0
        if window and size + tokens > max_tokens:
            result.append(_chunk(text, window))
            window = _tail(window, int(max_tokens * OVERLAP))
            size = sum(part[2] for part in window)
            if size + tokens > max_tokens:
                window, size = [], 0
        window.append((start, end, tokens))
        size += tokens
    if window:
        result.append(_chunk(text, window))
    return result


def _chunk(text: str, window: list[tuple[int, int, int]]) -> Chunk:
    start, end = window[0][0], window[-1][1]
    return Chunk(start, end, text[start:end])


def _tail(window: list[tuple[int, int, int]], tokens: int) -> list[tuple[int, int, int]]:
    kept: list[tuple[int, int, int]] = []
    for segment in reversed(window[1:]):
        tokens -= segment[2]
        if tokens < 0:
            break
        kept.insert(0, segment)
    return kept


def _segments(text: str, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, tokens) of sentences; one longer than max_tokens is cut anywhere."""
    for start, end in _sentences(text):
        tokens = estimate_tokens(text[start:end])
        if tokens <= max_tokens:
            if tokens:
                yield start, end, tokens
            continue
        yield from _hard_cuts(text, start, end, max_tokens)


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        if boundary.end() > start:
            yield start, boundary.end()
            start = boundary.end()
    if start < len(text):
        yield start, len(text)


def _hard_cuts(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    tokens, begin = 0, start
    for piece in _PIECES.finditer(text, start, end):
        at, stop = piece.span()
        while stop - at > 4 * max_tokens:  # one unbroken run of letters, a base64 blob
            yield begin, at + 4 * max_tokens, max_tokens
            begin = at = at + 4 * max_tokens
            tokens = 0
        cost = estimate_tokens(text[at:stop])
        if tokens + cost > max_tokens:
            yield begin, at, tokens
            begin, tokens = at, 0
        tokens += cost
    if begin < end:
        yield begin, end, tokens


def counted(count: int, noun: str) -> str:
    """Return *count* with its noun, in the plural where that is right."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
