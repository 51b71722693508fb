"""Smallest textual edits to a YAML file, each proven by parsing the result.

PyYAML's node marks say where things are; everything else of the text (comments, order,
quoting, line ends) stays. Several places may be right for an edit and none is trusted: the
first candidate whose *parsed* value is exactly the wanted one is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from . import yaml_places as places

SECTION = "plugins"
_COMMENT = re.compile(r"(?:^|\s)#")


class Unparsable(Exception):
    """Not YAML; ends with " at line N" where that is known."""

    def __init__(self, line: int | None) -> None:
        super().__init__("" if line is None else f" at line {line}")


class NoEdit(Exception):
    """No small edit gives exactly the wanted data."""


def load(text: str) -> Any:
    """Return the parsed document; raises Unparsable."""
    try:
        return yaml.safe_load(text)
    except yaml.reader.ReaderError as error:
        raise Unparsable(text.count("\n", 0, error.position) + 1) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        raise Unparsable(None if mark is None else mark.line + 1) from None


def add(text: str, key: str, item: str) -> tuple[str, str]:
    """Return the text with *item* last (or first) in ``plugins.<key>``, and what had to be made.

    That is ``plugins`` (the section was absent or empty), *key*, or ``item``.
    """
    data = load(text) or {}
    section = data.get(SECTION)
    items = (section or {}).get(key)
    made = SECTION if section is None else key if items is None else "item"
    allowed = [
        {**data, SECTION: {**(section or {}), key: listed}}
        for listed in ([*(items or []), item], [item, *(items or [])])
    ]
    return first(_additions(text, key, item), allowed), made


def remove(text: str, key: str, item: str, made: str = "item") -> str:
    """Return the text without *item* in ``plugins.<key>``.

    *made* is what :func:`add` returned: it goes too when nothing but *item* is in it.
    """
    pruned = _pruned(text, key, item, made)
    if pruned is not None:
        return pruned
    while item in load(text)[SECTION][key]:
        text = _without_first(text, key, item)
    return text


def _pruned(text: str, key: str, item: str, made: str) -> str | None:
    data = load(text)
    section = data[SECTION]
    if made == SECTION and section == {key: [item]}:
        wanted: Any = {name: value for name, value in data.items() if name != SECTION}
        path: tuple[str, ...] = (SECTION,)
    elif made in (SECTION, key) and section[key] == [item]:
        rest = {name: value for name, value in section.items() if name != key}
        wanted = {**data, SECTION: rest or None}
        path = (SECTION, key)
    else:
        return None
    allowed = [wanted or None, {**wanted, SECTION: {}} if len(path) == 2 else wanted]
    try:
        return first(_prunings(text, path), allowed)
    except NoEdit:
        return None


def _without_first(text: str, key: str, item: str) -> str:
    data = load(text)
    items = list(data[SECTION][key])
    items.remove(item)
    wanted = {**data, SECTION: {**data[SECTION], key: items}}
    return first(_removals(text, key, item), [wanted])


def first(candidates: Iterator[str], allowed: list[Any]) -> str:
    """Return the first candidate whose data is one of *allowed*; raises NoEdit."""
    for candidate in candidates:
        try:
            new = load(candidate)
            if any(same(new, wanted) for wanted in allowed):
                return candidate
        except (Unparsable, RecursionError):
            continue
    raise NoEdit


def same(one: Any, other: Any) -> bool:
    """Equality that tells 1 from True and finds NaN equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            key in other and same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


# -- where an item may go ----------------------------------------------------------------


def _additions(text: str, key: str, item: str) -> Iterator[str]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    whole = [f"{SECTION}:", f"  {key}:", f"    - {item}"]
    if not isinstance(root, yaml.MappingNode):
        yield places.append(text, len(text), whole, 0)
        return
    section = places.pair(root, SECTION)
    if section is None:
        yield from _new_section(text, root, whole, f"{SECTION}: {{{key}: [{item}]}}")
        return
    name, body = section
    if not isinstance(body, yaml.MappingNode):
        yield from places.fill(text, section, whole[1:], f"{{{key}: [{item}]}}")
        return
    entry = places.pair(body, key)
    if entry is None:
        if body.flow_style:
            yield from places.into_flow(text, body, f"{key}: [{item}]")
        else:
            column = body.value[0][0].start_mark.column
            lines = [f"{key}:", f"  - {item}"]
            yield places.after_line(text, name.end_mark.index, lines, column)
    elif isinstance(entry[1], yaml.SequenceNode):
        yield from _new_item(text, entry[0], entry[1], item)
    else:
        yield from places.fill(text, entry, [f"  - {item}"], f"[{item}]")


def _new_section(text: str, root: yaml.MappingNode, lines: list[str], flow: str) -> Iterator[str]:
    if root.flow_style:
        yield from places.into_flow(text, root, flow)
        return
    column = root.value[0][0].start_mark.column
    yield places.append(text, root.end_mark.index, lines, column)
    # A text block that runs to the end of the file would change by a line after it.
    yield places.append(text, root.value[0][0].start_mark.index, lines, column)


def _new_item(text: str, name: yaml.Node, items: yaml.SequenceNode, item: str) -> Iterator[str]:
    if items.flow_style:
        yield from places.into_flow(text, items, item)
        return
    first, last = items.value[0], items.value[-1]
    dash = places.dash_column(text, first)
    if dash is not None:
        yield places.after_line(text, places.end(last), [f"- {item}"], dash)
        yield places.after_line(text, name.end_mark.index, [f"- {item}"], dash)


# -- what may be cut ---------------------------------------------------------------------


def _removals(text: str, key: str, item: str) -> Iterator[str]:
    _, name, items = _entry(text, (SECTION, key))
    values = [node.value for node in items.value]
    index = values.index(item)
    if items.flow_style:
        spans = [(node.start_mark.index, node.end_mark.index) for node in items.value]
        yield from places.cut_flow(text, spans, index)
        return
    node = items.value[index]
    cut = places.cut_lines(text, node.start_mark.index, places.end(node))
    if len(values) > 1:
        yield cut
    else:
        colon = text.find(":", name.end_mark.index) + 1
        yield f"{cut[:colon]} []{cut[colon:]}"


def _prunings(text: str, path: tuple[str, ...]) -> Iterator[str]:
    parent, name, value = _entry(text, path)
    start, end = name.start_mark.index, places.end(value)
    if parent.flow_style:
        spans = [(one.start_mark.index, two.end_mark.index) for one, two in parent.value]
        yield from places.cut_flow(text, spans, spans.index((start, value.end_mark.index)))
    elif not _COMMENT.search(text[start : places.line_end(text, end)]):
        yield places.cut_lines(text, start, end)


def _entry(text: str, path: tuple[str, ...]) -> tuple[yaml.MappingNode, yaml.Node, Any]:
    """Return the mapping that holds the last name of *path*, and its key and value nodes."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    found: tuple[yaml.MappingNode, yaml.Node, Any] | None = None
    for name in path:
        entry = places.pair(node, name) if isinstance(node, yaml.MappingNode) else None
        if entry is None:
            raise NoEdit
        found, node = (node, *entry), entry[1]
    assert found is not None
    return found
