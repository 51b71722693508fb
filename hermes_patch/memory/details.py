"""Details that vectors blur: two notes that differ in one of them do not say the same.

"Port 8080" and "port 9090", or "likes" and "does not like", are near neighbours to a model.
"""

from __future__ import annotations

import re

from ..query import fold

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_NUMERALS = str.maketrans("一二两三四五六七八九", "1223456789")
_CHINESE_NUMBER = re.compile(r"[一二两三四五六七八九](?=[个只点月号年天次岁楼周星台条名位人小])")
_WORDS = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()
    )
    if number > 1
}
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|without|cannot|neither|nor|stopped|quit|dislikes?|hates?|avoids?)\b"
    r"|n['’]t\b|不|没|無|无|别|勿|禁|讨厌|停止|戒"
)
_NAME = re.compile(r"(?<![.!?。！？]\s)(?<!^)\b[A-Z][A-Za-z]+\b|\b[A-Za-z]+[A-Z]\w*|`[^`]+`")


def numbers(text: str) -> frozenset[str]:
    """Return the numbers in *text*, digits and small words alike."""
    folded = fold(text)
    found = set(_NUMBER.findall(folded))
    found |= {_WORDS[word] for word in re.findall(r"[a-z]+", folded) if word in _WORDS}
    found |= {one.translate(_NUMERALS) for one in _CHINESE_NUMBER.findall(folded)}
    return frozenset(found)


def is_negated(text: str) -> bool:
    """Tell whether *text* denies something an odd number of times."""
    return len(_NEGATION.findall(fold(text))) % 2 == 1


def differ(one: str, other: str) -> bool:
    """Tell whether two texts differ in a number, or one denies and the other does not."""
    return numbers(one) != numbers(other) or is_negated(one) != is_negated(other)
