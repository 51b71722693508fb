"""The report of an evaluation: one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..text import counted
from . import MODES, drawing
from .measures import curve
from .running import FLOOR, GATE, Asked
from .sets import EvaluationSet
from .style import CSS
from .trade import Point, Swept, best_hits, points

_TITLES = {
    "host": "Hermes alone",
    "keyword": "keywords (exact and relaxed)",
    "vector": "vectors alone",
    "hybrid": "all legs fused",
}
_COLUMNS = {
    "session_recall@1": "recall@1",
    "session_recall@3": "recall@3",
    "session_recall@5": "recall@5",
    "session_recall@10": "recall@10",
    "mrr@10": "MRR@10",
    "hit@1": "message hit@1",
    "hit@5": "message hit@5",
    "empty": "empty",
    "unanswerable_empty": "unanswerable, rightly empty",
}
_MAIN = "session_recall@5"
_TRADES = {
    FLOOR: ("vectors alone", "floor", "if the best hit had to reach …"),
    GATE: (
        "relaxed keywords alone",
        "gate",
        "if a hit had to contain this share of the question …",
    ),
}


def page(
    data: Mapping[str, Any],
    given: Sequence[EvaluationSet],
    asked: Mapping[str, Mapping[str, Asked]],
    swept: Mapping[str, Mapping[str, Swept]],
) -> str:
    """Return the page; *data* is what ``--json`` prints.

    *asked* has the modes and *swept* the legs of every set, by its name.
    """
    title = "How well past conversations are found"
    model = data["model"] or "keywords only"
    body = [
        f"<h1>{title}</h1>",
        f'<p class="sub">{_text(data["hermes"])} · {_text(model)} · {_counts(given)}</p>',
        _legend(data),
        '<div class="cards">',
        *(_card(name, modes) for name, modes in data["sets"].items()),
        "</div>",
        *(_section(one, data["sets"][one.name], asked[one.name], swept[one.name]) for one in given),
        "<h2>All figures</h2>",
        '<p class="sub">Shares of the questions with 95 % bootstrap intervals; one of 20 questions '
        "is 0.05. The best mode of a set is bold.</p>",
        _table(data["sets"]),
        *_comparisons(data["comparisons"]),
        *_categories(data["sets"]),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{CSS}'
        f"</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _text(value: object) -> str:
    return escape(str(value))


def _counts(given: Sequence[EvaluationSet]) -> str:
    queries = sum(len(one.queries) for one in given)
    hopeless = sum(len(one.unanswerable) for one in given)
    sets = counted(len(given), "set")
    return f"{sets}, {counted(queries, 'question')}, {hopeless} more without an answer"


def _legend(data: Mapping[str, Any]) -> str:
    used = [mode for mode in MODES if any(mode in modes for modes in data["sets"].values())]
    items = [f'<li><i class="key {mode}"></i>{mode}: {_TITLES[mode]}</li>' for mode in used]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _card(name: str, modes: Mapping[str, Any]) -> str:
    """Return the figure to see first: recall@5 of the last mode, and all modes as bars."""
    last = list(modes)[-1]
    low, high = modes[last]["intervals"][_MAIN]
    bars = [
        f'<div class="row"><span>{mode}</span><b><i class="{mode}" style="width:'
        f'{100 * one[_MAIN]:.0f}%"></i></b><span class="value">{one[_MAIN]:.2f}</span></div>'
        for mode, one in modes.items()
    ]
    return (
        f'<div class="card"><h3>{_text(name)}</h3><p class="big">{modes[last][_MAIN]:.2f}'
        f"<small>recall@5, {last} ({low:.2f}–{high:.2f})</small></p>{''.join(bars)}</div>"
    )


def _section(
    given: EvaluationSet,
    modes: Mapping[str, Any],
    asked: Mapping[str, Asked],
    swept: Mapping[str, Swept],
) -> str:
    lines = {mode: curve(given, asked[mode].answers()) for mode in modes}
    label = f"{given.name}: session recall at 1 to 10 by mode"
    figures = [_figure("Session recall", drawing.curves(lines, label))]
    near = swept.get(FLOOR)
    if near is not None and near.best:
        figures += [_of_similarity(given, near), _of_trade(given, near, FLOOR)]
    if GATE in swept:
        figures.append(_of_trade(given, swept[GATE], GATE))
    about = (
        f"{len(given.sessions)} sessions, {given.messages()} messages, "
        f"{counted(len(given.queries), 'question')}, "
        f"{len(given.unanswerable)} more without an answer"
    )
    return (
        f'<section><h2>{_text(given.name)}</h2><p class="sub">{about}</p>'
        f'<div class="figures">{"".join(figures)}</div></section>'
    )


def _figure(title: str, picture: str, keys: Mapping[str, str] | None = None) -> str:
    items = [
        f'<span><i class="key {kind}"></i>{text}</span>' for kind, text in (keys or {}).items()
    ]
    below = f'<div class="keys">{"".join(items)}</div>' if items else ""
    return f"<figure><figcaption>{title}</figcaption>{picture}{below}</figure>"


def _of_similarity(given: EvaluationSet, swept: Swept) -> str:
    groups = best_hits(given, swept)
    words = {"right": "right", "wrong": "wrong", "hopeless": "question without an answer"}
    keys = {kind: f"{words[kind]} ({len(found)})" for kind, found in groups.items() if found}
    label = f"{given.name}: similarities of right and wrong best hits"
    drawn = drawing.similarities(groups, swept.used, label)
    return _figure("Best hits of the vectors, no floor", drawn, keys)


def _of_trade(given: EvaluationSet, swept: Swept, leg: str) -> str:
    line = points(given, swept)
    lines = {"right": [(point.threshold, point.recall) for point in line]}
    keys = {"right": f"recall@5: {_in_use(line, swept, 'recall')}"}
    if given.unanswerable:
        lines["hopeless"] = [(point.threshold, point.quiet or 0.0) for point in line]
        about = _in_use(line, swept, "quiet")
        keys["hopeless"] = f"questions without an answer left empty: {about}"
    title, over, caption = _TRADES[leg]
    label = f"{given.name}: recall and rightly empty answers over the {over}"
    drawn = drawing.trade(lines, swept.used, label, caption)
    return _figure(f"Noise against recall: {title}", drawn, keys)


def _in_use(line: Sequence[Point], swept: Swept, figure: str) -> str:
    """Return the figure at every threshold in use; where an opening decides, only there."""
    names = ["opening"] if "opening" in swept.used else list(swept.used)
    at = {point.threshold: getattr(point, figure) for point in line}
    return ", ".join(f"{at[swept.used[name]]:.2f} ({name})" for name in names)


def _table(sets: Mapping[str, Mapping[str, Any]]) -> str:
    heads = "".join(f"<th>{title}</th>" for title in _COLUMNS.values())
    rows = []
    for name, modes in sets.items():
        best = {metric: _best(modes, metric) for metric in _COLUMNS}
        for mode, one in modes.items():
            cells = "".join(_cell(one, metric, best[metric]) for metric in _COLUMNS)
            first = f'<th rowspan="{len(modes)}">{_text(name)}<small>n = {one["n"]}</small></th>'
            lead = first if mode == next(iter(modes)) else ""
            rows.append(f'<tr>{lead}<td><i class="key {mode}"></i>{mode}</td>{cells}</tr>')
    head = f"<thead><tr><th>set</th><th>mode</th>{heads}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _best(modes: Mapping[str, Any], metric: str) -> float | None:
    """Return the value to print bold; more empty answers are better for nobody."""
    values = [one[metric] for one in modes.values() if one[metric] is not None]
    if metric in ("empty", "unanswerable_empty") or len(values) < 2 or not max(values):
        return None
    return float(max(values))


def _cell(one: Mapping[str, Any], metric: str, best: float | None) -> str:
    value = one[metric]
    if value is None:
        return "<td>–</td>"
    low, high = one["intervals"][metric]
    kind = ' class="best"' if value == best else ""
    return f"<td{kind}>{value:.2f}<small>{low:.2f}–{high:.2f}</small></td>"


def _comparisons(comparisons: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    rows = []
    for name, pairs in comparisons.items():
        for pair in pairs:
            low, high = pair["interval"]
            sure = ' class="best"' if low > 0 or high < 0 else ""
            rows.append(
                f"<tr><th>{_text(name)}</th><td>{pair['mode']} − {pair['against']}</td>"
                f"<td{sure}>{pair['difference']:+.2f}<small>{low:+.2f} … {high:+.2f}</small></td>"
                f"<td>{pair['p']:.3f}</td></tr>"
            )
    if not rows:
        return []
    head = "<thead><tr><th>set</th><th>modes</th><th>difference</th><th>p</th></tr></thead>"
    return [
        "<details><summary>Mode against mode: recall@5, paired by question</summary>"
        f'<div class="wide"><table>{head}<tbody>{"".join(rows)}</tbody></table></div></details>'
    ]


def _categories(sets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    split: dict[str, dict[str, Any]] = {}
    for name, modes in sets.items():
        for mode, one in modes.items():
            for category, figures in one["categories"].items():
                if figures["n"]:
                    split.setdefault(f"{name}: {category}", {})[mode] = figures
    if not split:
        return []
    return [f"<details><summary>By category</summary>{_table(split)}</details>"]
