"""``bench``: every method runs, agrees on what is near, and the page is self-contained."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_patch import bench, cli
from hermes_patch.bench import measuring, methods, plot, stores
from hermes_patch.errors import HermesPatchError
from test_nearest import python_with_extensions


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    python = Path(python_with_extensions() or sys.executable)
    return measuring.run([(120, 16), (240, 16)], 3, python)


def test_every_method_is_measured_on_every_store(measured: dict[str, Any]) -> None:
    keys = {
        "size",
        "dims",
        "method",
        "ms",
        "ratio_to_guide",
        "ratio_to_sqlite_vec",
        "recall_at_20",
        "rss_mb",
        "first_ms",
        "child_mb",
        "codes",
    }
    assert all(set(row) == keys for row in measured["rows"])
    found = {(row["size"], row["method"]) for row in measured["rows"]}
    here = [m for m in methods.METHODS if m not in methods.NEED_VEC]
    wanted = methods.METHODS if python_with_extensions() else here
    assert found == {(size, method) for size in (120, 240) for method in wanted}
    assert bool(measured["notes"]) == (len(wanted) == len(here))


@pytest.mark.parametrize(("use_numpy", "kind"), [(False, "columns"), (True, "int8")])
def test_what_is_measured_of_a_larger_store_are_the_codes(
    tmp_path: Path, use_numpy: bool, kind: str
) -> None:
    path = tmp_path / "state.db"
    queries = stores.build(path, 3000, 256)
    method = methods.NUMPY if use_numpy else methods.PYTHON
    given = {"dims": 256, "queries": queries[:3], "warm": True, "rows": None}
    codes = measuring._method(path, method, given, Path(sys.executable))
    exact = measuring._method(path, methods.GUIDE, given, Path(sys.executable))
    assert codes is not None and exact is not None
    assert codes["codes"] == kind and codes["child_mb"] > 5
    assert [set(ids) for ids in codes["ids"]] == [set(ids) for ids in exact["ids"]]


def test_the_floor_is_named_for_every_store(measured: dict[str, Any]) -> None:
    assert list(measured["floor_ms"]) == ["120 × 16", "240 × 16"]


def test_all_methods_find_the_same(measured: dict[str, Any]) -> None:
    assert [row["recall_at_20"] for row in measured["rows"]] == [1.0] * len(measured["rows"])
    assert all(row["ms"] > 0 for row in measured["rows"])
    guide = [row for row in measured["rows"] if row["method"] == methods.GUIDE]
    assert [row["ratio_to_guide"] for row in guide] == [1.0, 1.0]


def test_a_method_that_finds_something_else_shows_in_its_recall() -> None:
    one: dict[str, Any] = {"ms": [1.0], "rss_mb": 20.0, "ids": [[1, 2, 3, 4]]}
    one |= {"first_ms": None, "child_mb": 0.0, "codes": None}
    found = {methods.PYTHON: one, methods.GUIDE: {**one, "ms": [4.0], "ids": [[1, 2, 8, 9]]}}
    rows = {row["method"]: row for row in measuring._rows(found, 10, 4)}
    assert rows[methods.PYTHON]["recall_at_20"] == 0.5
    assert rows[methods.PYTHON]["ratio_to_guide"] == 4.0
    assert rows[methods.PYTHON]["ratio_to_sqlite_vec"] is None


def test_the_same_seed_gives_the_same_vectors() -> None:
    one, two = stores.Source(8), stores.Source(8)
    assert [one.vector() for _ in range(3)] == [two.vector() for _ in range(3)]
    assert stores.Source(8, seed=2).vector() != stores.Source(8).vector()


def test_a_method_that_fails_is_named(tmp_path: Path) -> None:
    given = {"dims": 4, "queries": [[1.0, 0.0, 0.0, 0.0]], "warm": False, "rows": None}
    with pytest.raises(HermesPatchError, match="guide's scan ended with"):
        measuring._method(tmp_path / "absent.db", methods.GUIDE, given, Path(sys.executable))


def test_the_page_needs_nothing_else(measured: dict[str, Any]) -> None:
    text = plot.page(measured)
    assert text.startswith("<!DOCTYPE html>") and text.count("<svg") == 1
    assert "http" not in text and "script" not in text and "nan" not in text.lower()
    assert all(text.count(method.replace("'", "&#x27;")) >= 2 for method in {methods.PYTHON})


@pytest.mark.parametrize(
    ("text", "found"),
    [("1k", [(1000, None)]), ("1kx2048,10k", [(1000, 2048), (10_000, None)]), ("5×8", [(5, 8)])],
)
def test_a_size_may_name_its_dimensions(text: str, found: list[tuple[int, int | None]]) -> None:
    assert bench._stores(text) == found


@pytest.mark.parametrize("text", ["1kx", "x8", "1kx0", "1kx2x3"])
def test_a_wrong_pair_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        bench._stores(text)


@pytest.mark.parametrize(
    ("text", "sizes"), [("500", [500]), ("1k,10k", [1000, 10_000]), ("1m", [1_000_000])]
)
def test_sizes_may_be_short(text: str, sizes: list[int]) -> None:
    assert bench._sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "-1", "1g", "1k,,2k", "11m", "x"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        bench._sizes(text)


def test_the_command_prints_json_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out.html"
    line = ["bench", "--sizes", "60", "--dims", "8", "--queries", "1", "--report", str(page)]
    assert cli.main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] and page.is_file()
    assert cli.main([*line[:-1], str(tmp_path)]) == 1
    assert "--report" in capsys.readouterr().err
