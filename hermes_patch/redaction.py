"""Takes secrets out of texts that are about to leave the machine.

Every pattern runs in time linear in the text: what can repeat without end is either the last
part of its pattern, or may not begin in the middle of such a run. Patterns begin with plain
letters, so that the engine can skip to them; what must not stand before is looked at after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MARK = "[redacted]"
Span = tuple[int, int]

_HEAD = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_TAIL = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BREAK = r"(?:\\r)?(?:\\n|\r?\n)[ \t]{0,8}"
_B64 = "[A-Za-z0-9+/]"

_TOKENS = "|".join(
    (
        r"sk-(?<!\wsk-)(?:[A-Za-z0-9]{16,}|(?=[A-Za-z_-]{0,40}\d)[\w-]{10,})[\w-]*",
        r"[sr]k_(?:live|test)_\w{10,}",
        r"gh[pousr]_(?<!\w.{4})\w{10,}",
        r"github_pat_\w{10,}",
        r"glpat-[\w-]{10,}",
        r"hf_(?<!\whf_)[A-Za-z0-9]{16,}",
        r"A(?:KI|SI)A(?<!\w.{4})[A-Z0-9]{12,}",
        r"AIza(?<!\wAIza)[\w-]{30,}",
        r"xox[a-z]-(?<!\w.{5})[\w-]{8,}",
        r"eyJ(?<![\w-]eyJ)[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",
    )
)
_SCHEME = r"(?:[a-z]{1,16}[ \t]{1,4})?"
_SIGN = r"""(?:\\{0,3}["'])?[ \t]{0,4}(?>:=|=>|[:=]|：)[ \t]{0,4}"""
_UNMARKED = r"""(?!(?:\\{0,3}["'])?(?:\[redacted\]|\$\{))"""
_QUOTED = (
    r""""(?=(?:[^"\\\n]|\\.){3})(?:[^"\\\n]++|\\.)++"?"""
    r"""|'(?=(?:[^'\\\n]|\\.){3})(?:[^'\\\n]++|\\.)++'?"""
    r"""|\\{1,3}"[^"\n]{3,}+"?"""  # in JSON that is itself in a string of JSON
)
_BARE = r"""[^\s"',;]{4,}"""
_VALUE = rf"{_UNMARKED}(?P<secret>{_QUOTED}|{_BARE})"
# On a line of its own under its name, what may as well be a word of prose stays.
_BELOW = (
    r"(?:[|>][+-]?[ \t]{0,4})?(?:\r?\n[ \t]{0,16}){1,2}" + _UNMARKED + "(?P<secret>"
    r"""(?:"[^"\n]{3,400}"|'[^'\n]{3,400}'"""
    r"""|(?=\S{0,400}[\d!@#$%^&*+=~])[^\s"',;]{6,400}(?<!:))"""
    r"(?=,?[ \t]{0,8}(?:[\r\n]|\Z)))"
)
_NAME = (
    r"(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?"
    r"|token|passw(?:or)?d|passphrase|pass(?==)|pwd|密码|口令|密钥)"
)

# What follows the name of an option in prose: "use the --token flag".
_AFTER_OPTION = (
    r"(?:options?|flags?|arg(?:ument)?s?|param(?:eter)?s?|switch(?:es)?|values?|settings?|with"
    r"|without|from|into|when|where|while|then|than|that|this|these|those|there|they|which|must"
    r"|should|could|would|will|need(?:s|ed)?|takes?|gives?|given|makes?|work(?:s|ed|ing)?|fails?"
    r"|failed|means?|asks?|reads?|exists?|does|have|also|only|because|your|their|instead|here"
    r"|again|before|after|unless|until|like|twice|once|file|path|either|both)\b"
)


@dataclass(frozen=True)
class _Rule:
    """What to hide: the group ``secret``, sought only where one of ``needles`` occurs.

    ``lower`` rules look at the text in lower case, for their needles too.
    """

    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    lower: bool = False


_RULES = (
    # A chunk of a message may begin or end inside a private key: its head, its tail, or
    # lines of base64 from its middle may be all there is.
    _Rule(("-----BEGIN ",), re.compile(rf"(?P<secret>{_HEAD}(?s:.*?)(?:{_TAIL}|\Z))")),
    _Rule(
        ("PRIVATE KEY",),
        re.compile(rf"(?P<secret>(?:(?<![A-Za-z0-9+/=]){_B64}{{1,76}}=*(?:{_BREAK})?)?{_TAIL})"),
    ),
    _Rule(
        ("\n", "\\n"),
        re.compile(rf"(?<!{_B64})(?P<secret>(?:{_B64}{{60,76}}{_BREAK}){{2,}}(?:{_B64}{{1,76}})?)"),
    ),
    # A password may hold a slash, unless it looks like a port or the end of an IPv6 address.
    _Rule(
        ("://",),
        re.compile(
            r"""://[^\s/:@"'<>]{0,256}:(?!\[redacted\]@)(?P<secret>[^\s/"'<>]{1,256}(?=@)"""
            r"""|(?!\d{1,5}[/?#]|[\da-fA-F:.]{0,45}\])[^\s"'<>@]{1,128}(?=@))"""
        ),
    ),
    _Rule(
        ("k-", "k_", "gh", "github_", "glpat-", "hf_", "IA", "AIza", "xox", "eyJ"),
        re.compile(f"(?P<secret>{_TOKENS})", re.ASCII),
    ),
    _Rule(
        ("authorization",),
        re.compile(
            r"""authorization["']?[ \t]{0,4}[:=][ \t]{0,4}["']?"""
            rf"""(?!{_SCHEME}\[redacted\]){_SCHEME}(?P<secret>[^\s"',;]{{6,}})"""
        ),
        lower=True,
    ),
    _Rule(
        ("bearer",),
        re.compile(
            r"bearer[ \t]{1,4}(?P<secret>(?:[\w.~+/-]{16,}"
            r"|(?=[a-z_.~+/-]{0,60}\d)[\w.~+/-]{6,})=*)",
            re.ASCII,
        ),
        lower=True,
    ),
    _Rule(
        ("cookie",),
        re.compile(
            r"""cookie["']?[ \t]{0,4}[:=][ \t]{0,4}["']?(?=[\w.-]{1,64}=)"""
            r"""(?P<secret>(?:[^\n"']|(?<==)"[^"\n]{0,400}")++)"""
        ),
        lower=True,
    ),
    _Rule((":", "=", "："), re.compile(_NAME + _SIGN + _VALUE), lower=True),
    _Rule(("\n",), re.compile(_NAME + _SIGN + _BELOW), lower=True),
    _Rule(
        ("--",),
        re.compile(
            rf"--(?:[a-z]{{1,20}}[_-]){{0,3}}(?:{_NAME}|pass|cookie)[ \t]{{1,4}}"
            rf"(?![-<(\[{{]|[^\x00-\x7f]|[\"']?\$|{_AFTER_OPTION}){_VALUE}"
        ),
        lower=True,
    ),
)
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


_second: Callable[[str], str] | None = None


def use(redactor: Callable[[str], str] | None) -> None:
    """Let *redactor*, such as the host's own, look at every text after us; None for nobody."""
    global _second
    _second = redactor


def redact(text: str) -> str:
    """Return *text* with ``[redacted]`` in place of keys, tokens, passwords and private keys.

    Names, hosts and user names around a secret stay. A mark is never marked again. What a
    second redactor (:func:`use`) hides is hidden too; one that fails changes nothing.
    """
    text = masked(text, spans(text))
    if _second is None:
        return text
    try:
        found = _second(text)
    except Exception:
        return text
    return found if isinstance(found, str) else text


def spans(text: str) -> list[Span]:
    """Return where secrets are in *text*, in order, none touching another's inside."""
    hidden: list[Span] = []
    lower = _lower(text)
    for rule in _RULES:
        if any(needle in (lower if rule.lower else text) for needle in rule.needles):
            current = masked(text, hidden)
            current = _lower(current) if rule.lower else current
            found = [match.span("secret") for match in rule.pattern.finditer(current)]
            hidden = _merged(hidden, found) if found else hidden
    return hidden


def masked(text: str, hidden: Sequence[Span], start: int = 0, end: int | None = None) -> str:
    """Return ``text[start:end]`` with a mark in place of what of it lies in *hidden*."""
    end = len(text) if end is None else end
    parts: list[str] = []
    for left, right in hidden:
        if left < end and right > start:
            parts += (text[start : max(start, left)], MARK)
            start = right
    return "".join([*parts, text[start:end]])


def _merged(hidden: Sequence[Span], found: Sequence[Span]) -> list[Span]:
    """Add to *hidden* what was *found* in the text with marks in place of it."""
    result: list[Span] = []
    at, shift = 0, 0
    for left, right in found:
        while at < len(hidden) and hidden[at][0] < left + shift:
            shift += hidden[at][1] - hidden[at][0] - len(MARK)
            result.append(hidden[at])
            at += 1
        begin, stop = left + shift, 0
        while at < len(hidden) and hidden[at][0] < right + shift:
            shift += hidden[at][1] - hidden[at][0] - len(MARK)
            stop = hidden[at][1]
            at += 1
        result.append((begin, max(stop, right + shift)))
    return [*result, *hidden[at:]]


def _lower(text: str) -> str:
    """Return *text* in lower case, every character in its place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)
