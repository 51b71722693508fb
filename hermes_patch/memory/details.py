"""Details that vectors blur: two notes that differ in one of them do not say the same.

"Port 8080" and "port 9090", or "likes" and "does not like", are near neighbours to a model.
"""

from __future__ import annotations

import re

from ..query import fold

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_NUMERALS = str.maketrans("一二两三四五六七八九日天", "122345678977")
_CHINESE_NUMBER = re.compile(r"[二两三四五六七八九](?=[个只点月号年次岁楼台条名位人小块张件种份])")
_CHINESE_DAY = re.compile(r"(?:周|星期|礼拜)([一二三四五六日天])")
_DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
_MONTHS = (
    "january february march april may june july august september october november december"
).split()
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_WORDS = (
    {word: str(number) for number, word in enumerate(_NUMBERS) if number > 1}
    | {day: f"day {number}" for number, day in enumerate(_DAYS, 1)}
    | {f"{day}s": f"day {number}" for number, day in enumerate(_DAYS, 1)}
    | {month: f"month {number}" for number, month in enumerate(_MONTHS, 1) if month != "may"}
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|without|cannot|neither|nor|stopped|quit|dislikes?|hates?|avoids?)\b"
    r"|n['’]t\b|不|没|無|无|别|勿|禁|讨厌|停止|戒"
)


def numbers(text: str) -> frozenset[str]:
    """Return the numbers, weekdays and months in *text*, digits and words alike.

    An indefinite "one" is no number, nor is May, which is mostly a verb.
    """
    folded = fold(text)
    found = set(_NUMBER.findall(folded))
    found |= {_WORDS[word] for word in re.findall(r"[a-z]+", folded) if word in _WORDS}
    found |= {one.translate(_NUMERALS) for one in _CHINESE_NUMBER.findall(folded)}
    found |= {f"day {one.translate(_NUMERALS)}" for one in _CHINESE_DAY.findall(folded)}
    return frozenset(found)


def is_negated(text: str) -> bool:
    """Tell whether *text* denies something an odd number of times."""
    return len(_NEGATION.findall(fold(text))) % 2 == 1


def differ(one: str, other: str) -> bool:
    """Tell whether two texts differ in a number or day, or one denies and the other does not."""
    return numbers(one) != numbers(other) or is_negated(one) != is_negated(other)
