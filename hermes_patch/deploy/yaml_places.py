"""Places in a YAML text: lines, columns, flow brackets. Pure functions on text and nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import yaml

_BREAK = re.compile(r"\r\n|\n|\r")
_DASH = re.compile(r"([ ]*)-[ \t]+")


def newline(text: str) -> str:
    """Return the line end that *text* uses first, else a line feed."""
    found = _BREAK.search(text)
    return found.group() if found else "\n"


def line_start(text: str, at: int) -> int:
    """Return where the line around *at* begins."""
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def line_end(text: str, at: int) -> int:
    """Return where the line around *at* ends, before its line end."""
    found = _BREAK.search(text, at)
    return found.start() if found else len(text)


def pair(mapping: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and value nodes of *key*; of several, the last, which is the one in force."""
    found = None
    for name, value in mapping.value:
        if isinstance(name, yaml.ScalarNode) and name.value == key:
            found = (name, value)
    return found


def end(node: yaml.Node) -> int:
    """Return where the text of *node* ends; a block collection's own mark is far below it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def dash_column(text: str, item: yaml.Node) -> int | None:
    """Return the column of the dash before a block list's *item*, None if that is unclear."""
    at = item.start_mark.index
    found = _DASH.fullmatch(text, line_start(text, at), at)
    return len(found.group(1)) if found else None


def _body(text: str, lines: Sequence[str], column: int) -> str:
    return newline(text).join(" " * column + line for line in lines)


def after_line(text: str, at: int, lines: Sequence[str], column: int) -> str:
    """Insert *lines* below the line around *at*."""
    stop = line_end(text, at)
    return f"{text[:stop]}{newline(text)}{_body(text, lines, column)}{text[stop:]}"


def append(text: str, at: int, lines: Sequence[str], column: int) -> str:
    """Insert *lines* above the line around *at*, or at the end, keeping a missing line end so."""
    body, brk = _body(text, lines, column), newline(text)
    if at >= len(text):
        unfinished = bool(text) and text[-1] not in "\r\n"
        return f"{text}{brk}{body}" if unfinished else f"{text}{body}{brk}"
    start = line_start(text, at)
    return f"{text[:start]}{body}{brk}{text[start:]}"


def fill(
    text: str, entry: tuple[yaml.Node, yaml.Node], lines: Sequence[str], flow: str
) -> Iterator[str]:
    """Give a value to a key that has none: as *lines* below it, or as *flow* beside it."""
    name, value = entry
    start, stop = value.start_mark.index, value.end_mark.index
    if start == stop:
        yield after_line(text, name.end_mark.index, lines, name.start_mark.column)
        yield f"{text[:start]} {flow}{text[start:]}"
    else:
        yield f"{text[:start]}{flow}{text[stop:]}"


def into_flow(text: str, node: yaml.CollectionNode, piece: str) -> Iterator[str]:
    """Insert *piece* into ``[...]`` or ``{...}``: behind the last entry, or in front."""
    if node.value:
        last = node.value[-1]
        stop = (last[1] if isinstance(last, tuple) else last).end_mark.index
        yield f"{text[:stop]}, {piece}{text[stop:]}"
    bracket = "{" if isinstance(node, yaml.MappingNode) else "["
    inside = text.find(bracket, node.start_mark.index) + 1
    comma = ", " if node.value else ""
    yield f"{text[:inside]}{piece}{comma}{text[inside:]}"


def cut_lines(text: str, start: int, stop: int) -> str:
    """Cut the whole lines from the one around *start* to the one around *stop*."""
    first, last = line_start(text, start), line_end(text, stop)
    found = _BREAK.match(text, last)
    if found:
        return text[:first] + text[found.end() :]
    # The last line of a file without a line end: the line before gives up its own.
    return re.sub(r"(?:\r\n|\n|\r)\Z", "", text[:first])


def cut_flow(text: str, spans: Sequence[tuple[int, int]], index: int) -> Iterator[str]:
    """Cut one entry, with one comma, out of a flow collection whose entries lie at *spans*."""
    start, stop = spans[index]
    if index > 0:
        yield text[: spans[index - 1][1]] + text[stop:]
    elif len(spans) > 1:
        yield text[:start] + text[spans[1][0] :]
    # An alias beside it lies, for the parser, where its anchor is: go by the comma then.
    after = re.compile(r"\s*,[ \t]*").match(text, stop)
    yield text[:start] + text[after.end() if after else stop :]
    yield text[:start].rstrip().removesuffix(",") + text[stop:]
