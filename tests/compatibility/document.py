"""docs/compatibility.md out of the results of matrix.py and own_tests.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Results = Sequence[Mapping[str, Any]]

_TOP = """# Compatibility

Made by one command, `python tests/compatibility/matrix.py --write --own-tests GIT_DIR`, where
GIT_DIR is a clone of Hermes or of a fork that carries its history. The same cells are tests:
`pytest -m matrix tests/test_matrix.py`. Every run of the tests has the oldest release, one in the
middle and the newest.

## Releases
Each cell goes the whole way on the real release: a history is written, the patch applied, the
history embedded by a server and found by its words and through its vectors, `status` read, and all
of it reverted, after which the database is what it was before. A cell names the tier that searched.
The columns are the Pythons of the machine that made this; a kind that is missing was not there.

"""
_OWN = """
## Hermes's own tests
The tests that Hermes brings for its session database, its session search, its plugins and its
dashboard's search, as they stand in trees of its history: unpatched, and patched while the
embedding server is fine, refuses, hangs and answers garbage. What differs is named. Alone:
`python tests/compatibility/own_tests.py GIT_DIR`.

"""

_EXPLAINED = {
    "without_fts5": "a Hermes without FTS5 finds nothing; while the server is fine, meaning does",
}


def page(cells: Results, own: Results) -> str:
    """Return the document."""
    parts = [_TOP, _grid(cells), _problems(cells), _capabilities(cells)]
    return "".join([*parts, *([_OWN, _own_tests(own)] if own else [])])


def _grid(cells: Results) -> str:
    pythons = sorted({(_number(one["python"]), one["python"], one["extensions"]) for one in cells})
    titles = [f"Python {v}, {'loads' if ext else 'no'} extensions" for _, v, ext in pythons]
    lines = [f"| Hermes | schema | {' | '.join(titles)} |", "|---|---|" + "---|" * len(pythons)]
    known = {(one["release"], one["python"], one["extensions"]): one for one in cells}
    for release, schema in _releases(cells):
        marks = [_mark(known.get((release, *kind))) for _, *kind in pythons]
        lines.append(f"| {release} | {schema} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _releases(cells: Results) -> list[tuple[str, int]]:
    found = {(one["release"], one["schema"]) for one in cells}
    return sorted(found, key=lambda one: _number(one[0]))


def _mark(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "not run"
    return "**failed**" if one["problem"] else f"ok, {one['tier']}"


def _problems(cells: Results) -> str:
    bad = [one for one in cells if one["problem"]]
    if not bad:
        return ""
    lines = [f"- {one['release']} on Python {one['python']}: {one['problem']}" for one in bad]
    return "\n" + "\n".join(lines) + "\n"


def _capabilities(cells: Results) -> str:
    lines = ["\n## What is patched where\n", "| Hermes | in place | left out |", "|---|---|---|"]
    for release, _ in _releases(cells):
        seen = dict[tuple[str, str], list[str]]()
        for one in cells:
            if one["release"] == release and not one["problem"]:
                without = "; ".join(f"{name}: {why}" for name, why in one["refusals"].items())
                kind = (", ".join(one["capabilities"]), without)
                seen.setdefault(kind, []).append(one["python"])
        for (present, without), pythons in seen.items():
            named = release if len(seen) == 1 else f"{release} on Python {', '.join(pythons)}"
            lines.append(f"| {named} | {present} | {without or 'nothing'} |")
    return "\n".join(lines) + "\n"


def _own_tests(own: Results) -> str:
    modes = list(own[0]["counts"])
    lines = [f"| tree | {' | '.join(modes)} | different |", "|---|" + "---|" * (len(modes) + 1)]
    for one in own:
        cells = [_counts(one["counts"][mode]) for mode in modes]
        differs = sorted({test for tests in one["differs"].values() for test in tests})
        named = "; ".join(map(_named, differs)) or "none"
        lines.append(f"| {one['tree']} (`{one['commit']}`) | {' | '.join(cells)} | {named} |")
    return "\n".join(lines) + "\n"


def _named(test: str) -> str:
    short = test.rpartition("::")[2]
    reasons = [why for part, why in _EXPLAINED.items() if part in short]
    return f"`{short}`" + (f" ({reasons[0]})" if reasons else "")


def _counts(counts: Mapping[str, int]) -> str:
    names = ("passed", "failure", "error", "skipped")
    return ", ".join(f"{counts[name]} {name}" for name in names if counts.get(name))
