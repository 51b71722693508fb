from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import PlainDatabase
from hermes_patch import failures, guard, store
from hermes_patch.embedders import protocol  # noqa: F401  (defines errors of its own)
from hermes_patch.errors import EmbedderError, EmbedderRefused, EmbedderUnavailable
from hermes_patch.guard import Failure, Guard

DAY = 86400.0


@pytest.fixture
def database(tmp_path: Path) -> PlainDatabase:
    return PlainDatabase(tmp_path / "state.db")


def kept(database: PlainDatabase) -> dict[str, Failure]:
    return {failure.kind: failure for failure in failures.read(database.conn)}


def test_a_report_says_each_failure_once(database: PlainDatabase) -> None:
    watched = Guard(clock=lambda: 100.0)
    reporter = failures.Reporter([watched])
    for _ in range(3):
        watched.note("realtime", EmbedderUnavailable("no answer from 127.0.0.1:9"))
    reporter.report(database)
    reporter.report(database)
    assert database.writes == 1
    failure = kept(database)["realtime: EmbedderUnavailable"]
    assert (failure.count, failure.at, failure.over) == (3, 100.0, None)
    assert failure.message == "no answer from 127.0.0.1:9"


def test_counts_of_several_processes_add_up(database: PlainDatabase) -> None:
    for _ in range(2):
        watched = Guard()
        watched.note("query", EmbedderUnavailable("down"))
        failures.Reporter([watched]).report(database)
    assert kept(database)["query: EmbedderUnavailable"].count == 2


def test_what_another_process_reported_is_over_when_the_seam_works_here(
    database: PlainDatabase,
) -> None:
    failing, working = Guard(), Guard()
    failing.note("query", EmbedderUnavailable("down"))
    failing.note("realtime", EmbedderUnavailable("down"))
    failures.Reporter([failing]).report(database)
    working.succeeded("query")
    failures.Reporter([working]).report(database)
    assert kept(database)["query: EmbedderUnavailable"].over is not None
    assert kept(database)["realtime: EmbedderUnavailable"].over is None


def test_a_new_failure_is_not_over(database: PlainDatabase) -> None:
    watched = Guard()
    reporter = failures.Reporter([watched])
    watched.note("query", EmbedderUnavailable("down"))
    watched.succeeded("query")
    reporter.report(database)
    watched.note("query", EmbedderUnavailable("down again"))
    reporter.report(database)
    failure = kept(database)["query: EmbedderUnavailable"]
    assert (failure.count, failure.over, failure.message) == (2, None, "down again")


def test_what_is_long_over_is_forgotten() -> None:
    old = [
        Failure("query: A", "a", 1, at=0.0, over=1.0),
        Failure("query: B", "b", 1, at=0.0, over=None),
        Failure("carry: C", "c", 1, at=0.0, over=9 * DAY),
    ]
    left = failures.merged(old, [], fine=(), now=10 * DAY)
    assert [failure.kind for failure in left] == ["query: B", "carry: C"]


def record(**changed: object) -> str:
    return json.dumps([{"kind": "a: B", "message": "", "count": 1, "at": 1.0, **changed}])


BROKEN = [
    *("", "nonsense", "[1]", '[{"kind": "a"}]', "{}", "[[]]"),
    *(record(at="x"), record(at=1e30), record(over=float("nan")), record(over="x")),
    *(record(count="x"), record(kind=1), record(more=1)),
]


def test_a_record_of_the_right_form_is_read(database: PlainDatabase) -> None:
    store.set_state(database.conn, "failures", record())
    assert failures.read(database.conn) == [Failure("a: B", "", 1, 1.0)]


@pytest.mark.parametrize("text", BROKEN)
def test_a_record_that_cannot_be_read_is_no_failure(database: PlainDatabase, text: str) -> None:
    database.conn.execute("INSERT OR REPLACE INTO embedding_state VALUES ('failures', ?)", (text,))
    assert failures.read(database.conn) == []


def test_every_kind_of_failure_has_a_remedy() -> None:
    refused = Failure(f"query: {EmbedderRefused.__name__}", "401", 1, 0.0)
    unknown = Failure("query: SomethingElse", "SomethingElse", 1, 0.0)
    assert "key" in failures.remedy(refused)
    assert "doctor" in failures.remedy(unknown)


def test_every_error_of_an_embedder_has_a_remedy_of_its_own() -> None:
    kinds = {kind.__name__ for kind in _descendants(EmbedderError)}
    assert len(kinds) >= 10
    for kind in kinds:
        assert "bug" not in failures.remedy(Failure(f"query: {kind}", "", 1, 0.0)), kind


def _descendants(kind: type[Exception]) -> set[type[Exception]]:
    below = set(kind.__subclasses__())
    return below.union(*(_descendants(each) for each in below))


def test_a_seam_that_worked_again_closes_its_own_failures_only() -> None:
    watched = guard.Guard()
    watched.note("query", ValueError())
    watched.note("carry", ValueError())
    watched.succeeded("query")
    assert {f.kind: f.over is None for f in watched.failures()} == {
        "query: ValueError": False,
        "carry: ValueError": True,
    }
