"""One value put into a YAML file at a path of names, the rest of the text left as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from . import yaml_edit, yaml_places

__all__ = ["put"]


def put(text: str, path: Sequence[str], value: float) -> str:
    """Return *text* with *value* at *path*, mappings made where there are none.

    Raises:
        yaml_edit.Unparsable: *text* is not YAML.
        yaml_edit.NoEdit: no small edit gives exactly that (aliases, merges, other types).
    """
    data = yaml_edit.load(text)
    if not isinstance(data or {}, dict):
        raise yaml_edit.NoEdit
    return yaml_edit.first(_candidates(text, path, value), [_with(data, path, value)])


def _with(data: Any, path: Sequence[str], value: float) -> Any:
    if not path:
        return value
    if not isinstance(data, dict) and data is not None:
        raise yaml_edit.NoEdit
    below = (data or {}).get(path[0])
    return {**(data or {}), path[0]: _with(below, path[1:], value)}


def _candidates(text: str, path: Sequence[str], value: float) -> Iterator[str]:
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        yield yaml_places.append(text, len(text), _block(path, value), 0)
        return
    for depth, name in enumerate(path):
        entry = yaml_places.pair(node, name)
        if entry is None:
            yield from _new(text, node, path[depth:], value)
            return
        below = path[depth + 1 :]
        if not below:
            start, stop = entry[1].start_mark.index, entry[1].end_mark.index
            blank = " " if start == stop else ""
            yield f"{text[:start]}{blank}{value!r}{text[stop:]}"
            return
        if not isinstance(entry[1], yaml.MappingNode):
            lines = [f"  {line}" for line in _block(below, value)]
            yield from yaml_places.fill(text, entry, lines, _flow(below, value))
            return
        node = entry[1]


def _new(text: str, node: yaml.MappingNode, path: Sequence[str], value: float) -> Iterator[str]:
    if node.flow_style:
        yield from yaml_places.into_flow(text, node, _flow(path, value)[1:-1])
        return
    first, last = node.value[0][0], node.value[-1][1]
    column, lines = first.start_mark.column, _block(path, value)
    yield yaml_places.after_line(text, yaml_places.end(last), lines, column)
    # A text block at the end would swallow the lines: then they go first.
    yield yaml_places.append(text, first.start_mark.index, lines, column)


def _block(path: Sequence[str], value: float) -> list[str]:
    *above, last = path
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(above)]
    return [*lines, f"{'  ' * len(above)}{last}: {value!r}"]


def _flow(path: Sequence[str], value: float) -> str:
    inner = repr(value)
    for name in reversed(path):
        inner = f"{{{name}: {inner}}}"
    return inner
