"""The pictures of the report: inline SVG, coloured by the classes of the page's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440.0, 262.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 88.0, 24.0, 34.0
BINS = 24
_LABEL, _LABEL_GAP = 72.0, 14.0


@dataclass(frozen=True)
class _Frame:
    """Maps values to places of the picture."""

    low: float
    high: float
    most: float

    def x(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low or 1.0)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - _BOTTOM - value / self.most * (HEIGHT - _TOP - _BOTTOM), 1)


def curves(lines: Mapping[str, Sequence[float]], label: str) -> str:
    """Draw shares at 1 … n, one line a mode, each named at its end."""
    count = max(map(len, lines.values()))
    frame = _Frame(1.0, float(count), 1.0)
    parts = [*_shares(frame), *(_tick(frame, float(k), str(k)) for k in (1, 3, 5, 10))]
    parts.append(_caption("found among the first …"))
    # The last mode is drawn broad and first, so that one that equals it is seen on top of it.
    for mode, values in reversed(list(lines.items())):
        places = [(frame.x(k), frame.y(value)) for k, value in enumerate(values, 1)]
        parts.append(_line(places, f"line {mode}"))
        parts += [f'<circle class="dot {mode}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in places]
    ends = {mode: frame.y(values[-1]) for mode, values in lines.items()}
    for mode, y in _spread(ends).items():
        parts.append(_text(f"name {mode}", WIDTH - _RIGHT + 7, y + 4, mode))
    return _picture(parts, label)


def similarities(
    groups: Mapping[str, Sequence[float]], marks: Mapping[str, float], label: str
) -> str:
    """Draw stacked histograms of the best hits' similarities and vertical *marks*."""
    values = [value for group in groups.values() for value in group]
    values += marks.values()
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or 0.05
    low, high = low - margin, high + margin
    step = (high - low) / BINS
    counts = {
        name: [sum(int((value - low) / step) == n for value in group) for n in range(BINS)]
        for name, group in groups.items()
    }
    most = max(sum(column) for column in zip(*counts.values(), strict=True)) or 1
    frame = _Frame(low, high, float(most))
    parts = [_axis(), *(_tick(frame, value, f"{value:.2f}") for value in _round_values(low, high))]
    parts += [_count(frame, count) for count in sorted({most, most // 2, 0})]
    parts.append(_caption("similarity of the best hit"))
    base = [0] * BINS
    for name, column in counts.items():
        for n, count in enumerate(column):
            if count:
                parts.append(_bar(frame, low + n * step, step, base[n], count, name))
            base[n] += count
    parts += _marks(frame, marks)
    return _picture(parts, label)


def trade(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, float],
    label: str,
    caption: str,
) -> str:
    """Draw shares over a threshold, all *lines* over the same ones; *caption* says which."""
    places = [x for x, _ in next(iter(lines.values()))]
    low, high = places[0], places[-1]
    frame = _Frame(low, high, 1.0)
    parts = [*_shares(frame)]
    parts += [_tick(frame, value, f"{value:.2f}") for value in _round_values(low, high)]
    parts.append(_caption(caption))
    for name, line in lines.items():
        parts.append(_line([(frame.x(x), frame.y(y)) for x, y in line], f"line {name}"))
    ends = {name: frame.y(line[-1][1]) for name, line in lines.items()}
    words = {"right": "recall@5", "hopeless": "empty"}
    for name, y in _spread(ends).items():
        parts.append(_text(f"name {name}", WIDTH - _RIGHT + 5, y + 4, words.get(name, name)))
    parts += _marks(frame, marks)
    return _picture(parts, label)


def _picture(parts: Sequence[str], label: str) -> str:
    body = "".join(parts)
    view = f"0 0 {WIDTH:g} {HEIGHT:g}"
    return f'<svg viewBox="{view}" role="img" aria-label="{escape(label)}">{body}</svg>'


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def _line(places: Sequence[tuple[float, float]], kind: str) -> str:
    points = " ".join(f"{x},{y}" for x, y in places)
    return f'<polyline class="{kind}" points="{points}"/>'


def _rule(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _axis() -> str:
    return _rule("axis", _LEFT, HEIGHT - _BOTTOM, WIDTH - _RIGHT, HEIGHT - _BOTTOM)


def _shares(frame: _Frame) -> list[str]:
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = frame.y(value)
        parts.append(_rule("grid" if value else "axis", _LEFT, y, WIDTH - _RIGHT, y))
        parts.append(_text("tick", _LEFT - 5, y + 4, f"{100 * value:.0f} %", "end"))
    return parts


def _tick(frame: _Frame, value: float, text: str) -> str:
    return _text("tick", frame.x(value), HEIGHT - _BOTTOM + 14, text, "middle")


def _count(frame: _Frame, count: int) -> str:
    return _text("tick", _LEFT - 5, frame.y(count) + 4, str(count), "end")


def _caption(text: str) -> str:
    return _text("caption", (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 4, text, "middle")


def _bar(frame: _Frame, start: float, step: float, base: int, count: int, kind: str) -> str:
    x, top = frame.x(start), frame.y(base + count)
    width, height = frame.x(start + step) - x - 1, frame.y(base) - top
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="bar {kind}" x="{x}" y="{top}" {size}/>'


def _marks(frame: _Frame, marks: Mapping[str, float]) -> list[str]:
    parts: list[str] = []
    for row, (name, value) in enumerate(marks.items()):
        x = frame.x(value)
        parts.append(_rule(f"mark {name}", x, _TOP - 10, x, HEIGHT - _BOTTOM))
        before = row == 0 and len(marks) > 1
        # The label of a line near the left edge starts at the edge.
        place, end = (x - 4, "end") if before and x > _LABEL else (0 if before else x + 4, "start")
        parts.append(_text("marked", place, _TOP - 10, f"{name} {value:.2f}", end))
    return parts


def _round_values(low: float, high: float) -> list[float]:
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / s <= 7)
    first = int(low / step) - 1
    values = [step * n for n in range(first, first + 12)]
    return [value for value in values if low <= value <= high]


def _spread(ends: Mapping[str, float]) -> dict[str, float]:
    """Move labels apart so that none covers another, keeping their order."""
    result: dict[str, float] = {}
    above = -_LABEL_GAP
    for name, y in sorted(ends.items(), key=lambda end: end[1]):
        above = max(y, above + _LABEL_GAP)
        result[name] = above
    over = max(result.values()) - (HEIGHT - _BOTTOM)
    return {name: y - max(0.0, over) for name, y in result.items()}
