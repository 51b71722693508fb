"""What a search query asks for: plain words, phrases, operators, terms to leave out.

The syntax is that of the host's search (FTS5 as Hermes accepts it): ``"a phrase"``, ``OR``,
``NOT``, ``AND``, ``NEAR``, ``prefix*``; everything else is words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from .stopwords import CHINESE_PARTICLES, CHINESE_WORDS, ENGLISH

MAX_CHARS = 2000
"""The longest text that is handed to an embedder, and the most that is read of a query."""

MAX_PHRASE = 200
CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
"""The inside of a character class: Chinese, Japanese and Korean letters."""

_TOKEN = re.compile(r'"[^"]*"|[()]|[^\s"()]+')
_NEAR_DISTANCE = re.compile(r",\s*\d+\s*\)")
_OPERATORS = frozenset({"AND", "OR", "NOT", "NEAR"})
_PIECE = re.compile(rf"[{CJK}]+|(?:[^\W_{CJK}])+")
_CJK_STOPS = re.compile("|".join(map(re.escape, CHINESE_WORDS)))
_PARTICLE = re.compile(f"[{''.join(sorted(CHINESE_PARTICLES))}]")
_INNER_SYMBOL = re.compile(r"(?<=\w)[%=@\\/&|~^$#+]+(?=\w)")
_TRIM = ".,;:!?。，；：！？、…'’‘“”「」『』《》()（）[]【】<>"
_KEYWORD_TOKENS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        r"[a-z][a-z0-9+.-]*://\S+|www\.\S+\.\S+",  # URL
        r"(?:[A-Za-z]:\\|\\\\|~?/|\.{1,2}/)\S*",  # path from a root
        r"[\w.@-]+(?:/[\w.@-]+){2,}/?|[\w.@-]+(?:/[\w.@-]+)*/[\w-]+\.\w{1,5}",  # src/main.py
        r"[\w-]+(?:\.[\w-]+)*\.[a-z][a-z0-9]{0,4}",  # file.ext, host.name
        r"#?\d[\d.,:/_-]*[%a-z]?|v\d+(?:\.\d+)+\S*",  # number, date, version, address
        r"0x[0-9a-fA-F]+|(?=[0-9a-f]*\d)[0-9a-f]{7,64}",  # hash
        r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",  # UUID
        r"E\d{3,}|[A-Z]{1,5}\d{4,}|[A-Z]{2,}(?:-\d+)*-\d{3,}",  # E1234, TS2304, CVE-2024-1234
        r"(?:[A-Z0-9]+_)+[A-Z0-9]+|[A-Z]\w*(?:Error|Exception)",  # ERR_TIMED_OUT, TypeError
        r"E(?:NO\w+|CONN\w+|ACCES|PERM|XIST|IO|BUSY|AGAIN|INVAL|PIPE|TIMEDOUT|ADDRINUSE|MFILE)",
        r"SIG(?:KILL|TERM|SEGV|INT|HUP|ILL|ABRT|BUS|PIPE|STOP|QUIT|USR[12])",
    )
)


@dataclass(frozen=True)
class Query:
    """A parsed query; every term is folded (see :func:`fold`).

    ``terms``: what a message must contain to match exactly, phrases and CJK runs whole.
    ``words``: content words for the relaxed leg. ``runs``: CJK runs of at least two
    characters without stop words. ``excluded``: terms after NOT.
    ``is_exact``: every term is quoted. ``keyword_only``: nothing but error codes, paths,
    URLs, hashes and numbers. ``is_prefix_search``: some word ends in ``*``. ``is_literal``:
    one word with a symbol inside, which means itself where it is found.
    """

    terms: tuple[str, ...] = field(default=(), repr=False)
    words: tuple[str, ...] = field(default=(), repr=False)
    runs: tuple[str, ...] = field(default=(), repr=False)
    excluded: tuple[str, ...] = field(default=(), repr=False)
    is_exact: bool = False
    has_operators: bool = False
    keyword_only: bool = False
    is_prefix_search: bool = False
    is_literal: bool = False

    @property
    def is_host_alone(self) -> bool:
        """True when only the host's own search may answer."""
        return self.is_exact or self.keyword_only

    @property
    def host_first(self) -> bool:
        """True when the host's rows keep their order and stand before ours."""
        return self.has_operators or self.is_prefix_search


def fold(text: str) -> str:
    """Return *text* in lower case without accents, every character in its place.

    The result has the length of *text*, so that offsets hold in both.
    """
    if text.isascii():
        return text.lower()
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return lower.translate(_ACCENTS) if _ACCENTED.search(lower) else lower


def _accents() -> dict[int, str]:
    folded = {}
    full_width = (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))
    for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00), *full_width):
        base = unicodedata.normalize("NFKD", chr(code))[0].lower()
        if base != chr(code):
            folded[code] = base
    return folded


_ACCENTS = _accents()
_ACCENTED = re.compile("[\u00c0-\u024f\u1e00-\u1eff\uff10-\uff5a]")


@dataclass(frozen=True)
class _Token:
    text: str = field(repr=False)
    quoted: bool = False
    excluded: bool = False
    operator: bool = False


def _tokens(query: str) -> Iterator[_Token]:
    """Yield words, phrases and operators; what NOT applies to is marked as excluded."""
    query = _NEAR_DISTANCE.sub(")", query) if "NEAR" in query else query
    negated, depth = False, 0
    for raw in _TOKEN.findall(query):
        if raw in "()":
            depth = depth + (1 if raw == "(" else -1) if negated and (depth or raw == "(") else 0
            negated = negated and depth > 0
        elif raw in _OPERATORS:
            negated = raw == "NOT" or (negated and depth > 0)
            yield _Token(raw, operator=True)
        else:
            text = raw.strip('"').strip()
            if text:
                yield _Token(text, raw.startswith('"'), negated)
            negated = negated and depth > 0


def parse(query: str) -> Query:
    """Return what *query* asks for; only its first :data:`MAX_CHARS` characters are read."""
    tokens = list(_tokens(_clip(query)))
    asked = [t for t in tokens if not t.operator and not t.excluded]
    terms: dict[str, None] = {}
    words: dict[str, None] = {}
    runs: dict[str, None] = {}
    for token in asked:
        folded = fold(token.text)
        terms.update(dict.fromkeys(_exact_terms(folded, token.quoted)))
        words.update(dict.fromkeys(_content_words(folded)))
        runs.update(dict.fromkeys(_content_runs(folded)))
    bare = [t.text.strip(_TRIM) for t in asked if not t.quoted]
    return Query(
        terms=_significant(terms),
        words=tuple(words),
        runs=tuple(runs),
        excluded=tuple(fold(t.text.strip("*" + _TRIM)) for t in tokens if t.excluded),
        is_exact=bool(asked) and all(t.quoted for t in asked),
        has_operators=any(t.operator and t.text != "AND" for t in tokens),
        keyword_only=bool(bare) and len(bare) == len(asked) and all(map(_is_keyword, bare)),
        is_prefix_search=any(t.text.endswith("*") and not t.quoted for t in asked),
        is_literal=len(bare) == len(asked) == 1 and bool(_INNER_SYMBOL.search(bare[0])),
    )


def _is_keyword(token: str) -> bool:
    return any(pattern.fullmatch(token) for pattern in _KEYWORD_TOKENS)


def _exact_terms(folded: str, quoted: bool) -> Iterator[str]:
    if quoted:
        yield " ".join(folded.split())[:MAX_PHRASE]
        return
    yield from (piece.group() for piece in _PIECE.finditer(folded))


def _significant(terms: dict[str, None]) -> tuple[str, ...]:
    kept = tuple(term for term in terms if term not in ENGLISH)
    return kept or tuple(terms)


def _content_words(folded: str) -> Iterator[str]:
    for piece in _PIECE.finditer(folded):
        word = piece.group()
        if is_cjk(word) or word in ENGLISH or (len(word) == 1 and not word.isdigit()):
            continue
        yield word


def _content_runs(folded: str) -> Iterator[str]:
    for piece in _PIECE.finditer(folded):
        if not is_cjk(piece.group()):
            continue
        for part in _CJK_STOPS.sub(" ", piece.group()).split():
            yield from (run for run in _PARTICLE.sub(" ", part).split() if len(run) > 1)


def is_cjk(text: str) -> bool:
    """Tell whether *text* begins with a Chinese, Japanese or Korean letter."""
    return bool(_CJK_START.match(text))


def has_cjk(text: str) -> bool:
    """Tell whether *text* has a Chinese, Japanese or Korean letter anywhere."""
    return bool(_CJK_START.search(text))


_CJK_START = re.compile(f"[{CJK}]")


def plain_text(query: str) -> str:
    """Return the words of *query* for an embedder: no operators, quotes, stars, NOT terms.

    A long query (a pasted log) keeps its beginning and its end, :data:`MAX_CHARS` in all.
    """
    words = [
        token.text if token.quoted else token.text.rstrip("*").lstrip("*^+")
        for token in _tokens(_clip(query))
        if not token.operator and not token.excluded
    ]
    return " ".join(word for word in words if word)


def _clip(query: str) -> str:
    if len(query) <= MAX_CHARS:
        return query
    head, tail = query[: MAX_CHARS * 2 // 3], query[-(MAX_CHARS // 3 - 3) :]
    head = head[: max(_last_blank(head), MAX_CHARS // 2)]
    tail = tail[_first_blank(tail) :]
    return f"{head.rstrip()} … {tail.lstrip()}"


def _last_blank(text: str) -> int:
    return max(text.rfind(mark) for mark in (" ", "\n", "。", "，"))


def _first_blank(text: str) -> int:
    found = re.search(r"[\s。，]", text[:200])
    return found.end() if found else 0
