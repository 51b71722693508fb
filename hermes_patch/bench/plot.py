"""The report of a benchmark: one self-contained HTML page, time over size on two log scales."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 76, 200, 16, 40
COLOURS = ("#9a5b13", "#1f6fb2", "#1b8a5a", "#8a4fb0", "#b3384c", "#777")
_CSS = """:root { color-scheme: light dark; } body { font: 15px/1.5 system-ui, sans-serif;
max-width: 860px; margin: 2em auto; padding: 0 1em; } svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: currentColor; } .grid { stroke: currentColor; opacity: .15; }
polyline { fill: none; stroke-width: 2; } .floor { stroke-dasharray: 5 4; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } th, td { padding: 3px 12px;
text-align: right; border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
th:nth-child(3), td:nth-child(3) { text-align: left; }"""
_COLUMNS = {
    "size": "vectors",
    "dims": "dims",
    "method": "method",
    "codes": "codes",
    "ms": "ms",
    "first_ms": "first ms",
    "ratio_to_guide": "× guide",
    "ratio_to_sqlite_vec": "× sqlite-vec",
    "recall_at_20": "recall@20",
    "rss_mb": "MB",
    "child_mb": "child MB",
}


def page(data: Mapping[str, Any]) -> str:
    """Return the page; *data* is what ``--json`` prints."""
    lengths = list(dict.fromkeys(row["dims"] for row in data["rows"]))
    body = [
        "<h1>Finding the nearest vectors</h1>",
        f"<p>{escape(data['machine'])}. Medians; lower is faster.</p>",
        *(f"<h2>{dims} dimensions</h2>{_plot(data, dims)}" for dims in lengths),
        _table(data["rows"]),
        *(f"<p>{escape(note)}</p>" for note in data["notes"]),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Finding the nearest vectors</title><style>{_CSS}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _lines(data: Mapping[str, Any], dims: int) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in data["rows"]:
        if row["dims"] == dims:
            lines.setdefault(row["method"], []).append((row["size"], max(row["ms"], 1e-3)))
    sizes = sorted({size for line in lines.values() for size, _ in line})
    floor = [(size, max(data["floor_ms"][f"{size} × {dims}"], 1e-3)) for size in sizes]
    return {**lines, "memory bandwidth": floor}


def _plot(data: Mapping[str, Any], dims: int) -> str:
    lines = {name: sorted(line) for name, line in _lines(data, dims).items()}
    x = _Scale([p[0] for line in lines.values() for p in line], LEFT, WIDTH - RIGHT)
    y = _Scale([p[1] for line in lines.values() for p in line], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x, y)]
    ends = sorted((y.at(line[-1][1]), name) for name, line in lines.items())
    below = 0.0
    for place, name in ends:
        colour = COLOURS[list(lines).index(name) % len(COLOURS)]
        points = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in lines[name])
        kind = ' class="floor"' if name == "memory bandwidth" else ""
        parts.append(f'<polyline{kind} stroke="{colour}" points="{points}"/>')
        parts += [
            f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="3" fill="{colour}"/>'
            for a, b in lines[name]
        ]
        below = max(place, below + 15)
        parts.append(
            f'<text x="{WIDTH - RIGHT + 10}" y="{below + 4:.1f}" style="fill:{colour}">'
            f"{escape(name)} {_amount(lines[name][-1][1])} ms</text>"
        )
    label = f"milliseconds of a search over the number of vectors, {dims} dimensions"
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return f"{head}{''.join(parts)}</svg>"


class _Scale:
    """Places on a logarithmic axis from *start* to *stop*, in whole decades."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self._start, self._step = start, (stop - start) / (self.high - self.low)

    def at(self, value: float) -> float:
        """Return the place of *value*."""
        return self._start + (math.log10(value) - self.low) * self._step

    @property
    def decades(self) -> list[float]:
        """The powers of ten on the axis."""
        return [10.0**n for n in range(self.low, self.high + 1)]


def _grid(x: _Scale, y: _Scale) -> list[str]:
    parts = []
    for value in x.decades:
        at = f"{x.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT - 20}" text-anchor="middle">{value:,.0f}</text>')
    for value in y.decades:
        at = f"{y.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at}" text-anchor="end">{value:,g} ms</text>')
    return parts


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{title}</th>" for title in _COLUMNS.values())
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row[key])}</td>" for key in _COLUMNS) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
