from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from databases import HostDatabase
from hermes_patch import recall, search
from hermes_patch.config import Settings
from hermes_patch.engine import Engine, QueryVector
from hermes_patch.recall import Trace
from hermes_patch.search import Found


def test_the_more_messages_the_nearer_the_best_hit_has_to_be() -> None:
    openings = [recall.opening(0.34, 0.38, n) for n in (0, 2, 100, 400, 10**6)]
    assert openings == sorted(openings)  # type: ignore[type-var]
    assert (openings[0], openings[3], openings[4]) == (0.34, 0.38, 0.38)


def test_a_model_without_an_opening_has_none() -> None:
    assert recall.opening(0.4, None, 500) is None


def trace() -> Trace:
    found = Found("vector", 0.41237)
    return Trace({7: found}, {"s1": found}, {"status": "ok"})


def test_results_are_annotated_by_message_and_nothing_else_changes() -> None:
    answer = {"success": True, "results": [{"match_message_id": 7, "x": 1}, {"x": 2}]}
    told = json.loads(recall.annotate(json.dumps(answer), trace()))
    assert told["results"] == [
        {"match_message_id": 7, "x": 1, "search_type": "vector", "similarity": 0.412},
        {"x": 2},
    ]
    assert told["semantic"] == {"status": "ok"}


def test_summarising_versions_are_annotated_by_session() -> None:
    answer = json.dumps({"results": [{"session_id": "s1", "summary": "…"}]})
    assert json.loads(recall.annotate(answer, trace()))["results"][0]["search_type"] == "vector"


@pytest.mark.parametrize("answer", ['{"error": "no database"}', '{"results": null}', "[1, 2]"])
def test_an_answer_without_results_stays_as_it_is(answer: str) -> None:
    assert recall.annotate(answer, trace()) == answer


def test_a_leg_that_fails_is_told_and_over_once_it_works_again(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "state.db", Settings, owned=True)
    broken = search.Outcome([], {}, {"relaxed": search.OK, "vector": "failed (DatabaseError)"})
    recall._tell(engine, broken)
    recall._tell(engine, broken)
    [failure] = engine.guard.failures()
    assert (failure.kind, failure.count, failure.over) == ("vector leg: LegFailed", 2, None)
    assert failure.message == "the vector leg failed (DatabaseError)"
    recall._tell(engine, search.Outcome([], {}, {"relaxed": search.OFF, "vector": search.OK}))
    assert engine.guard.failures()[0].over is not None


@pytest.mark.parametrize(
    ("typed", "secret"),
    [
        ('the server wants password="correct horse battery staple" now', "horse"),
        ("why does token=abc(SECRETdef)SECRETghi fail", "SECRET"),
        ("what is token=" + "Z9" * 1500, "Z9Z9"),
        ("a long log " * 150 + "-----BEGIN RSA PRIVATE KEY-----\n" + "QUJD" * 300, "QUJDQUJD"),
    ],
)
def test_secrets_in_a_query_are_hidden_before_it_becomes_plain_words(
    tmp_path: Path, typed: str, secret: str
) -> None:
    HostDatabase(tmp_path / "state.db").conn.close()
    remote = Settings(provider="openai", model="stub", base_url="https://example.org/v1")
    engine = Engine(tmp_path / "state.db", lambda: remote, owned=True)
    sent: list[str] = []

    def query_vector(text: str, *_args: object, **_more: object) -> QueryVector:
        sent.append(text)
        return QueryVector(None, None, "")

    handle = Handle()
    engine.attach(handle)
    call = recall.Call(lambda *_: [], handle, {"query": typed, "limit": 5, "offset": 0})
    recall._fuse(engine, call, [], query_vector, True)
    assert len(sent) == 1 and sent[0] and secret not in sent[0]


class Handle:
    """Stands for a SessionDB, of which only its identity matters here."""


ROW = dict.fromkeys(recall.KEYS, "x") | {"id": 5, "session_id": "s", "snippet": "a"}


def searching(calls: list[Any], snippets: Sequence[str] = ("a", "a", "a")) -> Callable[..., Any]:
    def search_messages(
        self: Any,
        query: str,
        limit: int = 20,
        offset: int = 0,
        sort: Any = None,
        fields: Any = None,
    ) -> list[dict[str, Any]]:
        row = {**ROW, "snippet": snippets[len(calls)]}
        calls.append((limit, offset, fields))
        return [{key: row[key] for key in recall.KEYS if fields is None or key in fields}]

    return search_messages


def widened(calls: list[Any], **asked: Any) -> Any:
    search_messages = searching(calls, asked.pop("snippets", ("a", "a", "a")))
    rows = search_messages(None, "docker", **asked)
    return recall.Call.bind(search_messages, None, ("docker",), asked).widened(rows)


@pytest.mark.parametrize("fields", [None, ("id", "session_id", "snippet")])
def test_rows_with_all_that_is_read_are_not_asked_for_again(fields: Any) -> None:
    calls: list[Any] = []
    assert widened(calls, fields=fields)[0]["id"] == 5
    assert len(calls) == 1


def test_what_is_read_is_asked_for_without_running_the_contexts_again() -> None:
    calls: list[Any] = []
    [row] = widened(calls, fields=("session_id", "context"), sort="newest")
    assert calls[1] == (20, 0, ["id", "session_id", "timestamp"])
    assert row == {key: ROW[key] for key in ("id", "session_id", "timestamp", "context")}


def test_an_answer_that_changed_meanwhile_is_asked_for_once_more() -> None:
    calls: list[Any] = []
    [row] = widened(calls, fields=("snippet", "context"), snippets=("a", "b", "b"))
    assert (row["snippet"], row["context"]) == ("b", "x")
    assert len(calls) == 3 and "context" in calls[2][2]


def test_rows_of_a_later_page_are_asked_for_from_the_first() -> None:
    calls: list[Any] = []
    widened(calls, offset=10, limit=5)
    assert calls[1] == (15, 0, list(recall.KEYS))
