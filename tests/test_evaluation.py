"""Evaluation sets are checked, measures are right, and a real Hermes is asked in every mode."""

from __future__ import annotations

import argparse
import copy
import io
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_patch import evaluation
from hermes_patch.config import Settings
from hermes_patch.errors import HermesPatchError
from hermes_patch.evaluation import measures, report, running, saved, sets, trade
from hermes_patch.evaluation.measures import Answer
from hermes_patch.evaluation.running import THRESHOLDS, Asked, Hit, Source
from hermes_patch.evaluation.sets import Query
from hermes_patch.evaluation.trade import Best, Swept
from stub_server import StubServer
from targets import Installed

TINY: dict[str, Any] = {
    "name": "tiny",
    "sessions": [
        {
            "id": "garden",
            "started_at": 1_700_000_000,
            "title": None,
            "messages": [
                {"id": "g0", "role": "user", "text": "My tomato seedlings grow long and pale"},
                {"id": "g1", "role": "assistant", "text": "Seedlings at the window lack light"},
            ],
        },
        {
            "id": "bicycle",
            "started_at": 1_700_100_000,
            "title": "Squeaking brakes",
            "messages": [
                {"id": "b0", "role": "user", "text": "The front brake squeaks when it rains"},
                {"id": "b1", "role": "assistant", "text": "Clean the rim, then sand the pads"},
            ],
        },
        {
            "id": "tea",
            "started_at": 1_700_200_000,
            "messages": [
                {"id": "t0", "role": "user", "text": "泡绿茶的水温多少合适"},
                {"id": "t1", "role": "assistant", "text": "八十度左右，水太烫会发苦"},
            ],
        },
    ],
    "queries": [
        {
            "id": "q-exact",
            "text": "tomato seedlings",
            "gold": ["g0"],
            "gold_sessions": ["garden"],
            "category": "exact",
        },
        {
            "id": "q-loose",
            "text": "why does the front brake of mine scream when it rains",
            "gold": ["b0"],
            "gold_sessions": ["bicycle"],
            "category": "loose",
        },
        {
            "id": "q-tea",
            "text": "绿茶要用多少度的水温",
            "gold": ["t0"],
            "gold_sessions": ["tea"],
            "category": "loose",
        },
    ],
    "unanswerable": [{"id": "q-none", "text": "volcano eruption forecast"}],
}


def written(folder: Path, data: Any, name: str = "tiny.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    return path


def tiny(folder: Path) -> sets.EvaluationSet:
    return sets.load(written(folder, TINY))


# -- sets --------------------------------------------------------------------------------


def test_a_set_is_read_with_sessions_questions_and_gold(tmp_path: Path) -> None:
    found = tiny(tmp_path)
    assert (found.name, found.messages(), len(found.sessions)) == ("tiny", 6, 3)
    assert found.sessions[1].title == "Squeaking brakes"
    assert found.queries[1].gold == {"b0"} and found.queries[1].gold_sessions == {"bicycle"}
    assert found.unanswerable[0].gold_sessions == frozenset()


def test_a_limit_keeps_the_first_questions_of_each_kind(tmp_path: Path) -> None:
    found = sets.load(written(tmp_path, TINY), limit=2)
    assert [query.id for query in found.queries] == ["q-exact", "q-loose"]
    assert len(found.unanswerable) == 1 and len(found.sessions) == 3


def test_the_digest_follows_what_is_written_and_not_what_is_asked(tmp_path: Path) -> None:
    other = changed(lambda data: data["queries"].pop())
    another = changed(lambda data: data["sessions"][0]["messages"][0].update(text="else"))
    first = tiny(tmp_path).digest()
    assert sets.load(written(tmp_path, other)).digest() == first
    assert sets.load(written(tmp_path, another)).digest() != first


def changed(change: Callable[[Any], Any]) -> Any:
    data = copy.deepcopy(TINY)
    change(data)
    return data


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no sessions": (
        lambda d: d.pop("sessions"),
        "the set.sessions: expected a list, found nothing",
    ),
    "empty sessions": (
        lambda d: d.update(sessions=[]),
        "the set.sessions: expected at least 1, found an empty list",
    ),
    "a session that is text": (
        lambda d: d["sessions"].insert(1, "x"),
        "sessions[1]: expected an object, found str",
    ),
    "a time that is text": (
        lambda d: d["sessions"][2].update(started_at="today"),
        "sessions[2].started_at: expected seconds since 1970, found str",
    ),
    "an unknown role": (
        lambda d: d["sessions"][0]["messages"][1].update(role="robot"),
        "sessions[0].messages[1].role: expected one of user, assistant, tool, system, "
        "found 'robot'",
    ),
    "a message id twice": (
        lambda d: d["sessions"][1]["messages"][0].update(id="g1"),
        "sessions[1].messages[0].id: expected an id of its own, found 'g1', as in "
        "sessions[0].messages[1]",
    ),
    "a question id twice": (
        lambda d: d["unanswerable"][0].update(id="q-tea"),
        "unanswerable[0].id: expected an id of its own, found 'q-tea', as in queries[2]",
    ),
    "a blank question": (
        lambda d: d["queries"][0].update(text=" "),
        "queries[0].text: expected text, found blank text",
    ),
    "no gold session": (
        lambda d: d["queries"][0].update(gold_sessions=[]),
        "queries[0].gold_sessions: expected at least one id of sessions, found an empty list",
    ),
    "an unknown gold session": (
        lambda d: d["queries"][2].update(gold_sessions=["coffee"]),
        "queries[2].gold_sessions: expected ids of sessions of this set, found 'coffee'",
    ),
    "an unknown gold message": (
        lambda d: d["queries"][2].update(gold=["t9"]),
        "queries[2].gold: expected ids of messages of this set, found 't9'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_entry_is_named_with_what_was_expected_and_found(tmp_path: Path, name: str) -> None:
    change, expected = WRONG[name]
    path = written(tmp_path, changed(change))
    with pytest.raises(HermesPatchError) as raised:
        sets.load(path)
    assert str(raised.value) == f"{path}: {expected}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{\n oops", "not valid JSON at line 2"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"[]", "the set: expected an object, found list"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_file_that_is_no_set_is_named(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HermesPatchError, match=re.escape(f"broken.json: {expected}")):
        sets.load(path)


# -- measures ----------------------------------------------------------------------------

NAMES = st.lists(st.sampled_from("abcdefghijklmno"), max_size=14)
GOLD = st.frozensets(st.sampled_from("abcdefghijklmno"), min_size=1, max_size=4)


def scored(
    sessions: Any, gold: Any, messages: Any = (), gold_messages: Any = ()
) -> dict[str, float]:
    query = Query("q", "?", gold=frozenset(gold_messages), gold_sessions=frozenset(gold))
    return measures.scores(Answer(tuple(sessions), tuple(messages)), query)


def test_the_scores_of_one_answer_are_those_counted_by_hand() -> None:
    found = scored("xyzgh", "gh", ["m1", "m2"], ["m2"])
    assert [found[f"session_recall@{k}"] for k in (1, 3, 5, 10)] == [0, 0, 1, 1]
    assert found["mrr@10"] == 0.25 and found["empty"] == 0
    assert [found[f"hit@{k}"] for k in (1, 3, 5, 10)] == [0, 1, 1, 1]


def test_an_empty_answer_scores_nothing_but_empty() -> None:
    found = scored("", "a")
    assert found.pop("empty") == 1 and set(found.values()) == {0.0}


def test_a_session_listed_twice_takes_one_place() -> None:
    assert scored("xxxxxg", "g") == scored("xg", "g")
    assert measures.rank("xxg", "g") == 2


def test_what_stands_behind_the_tenth_place_counts_for_nothing() -> None:
    found = scored("abcdefghijz", "z")
    assert found["mrr@10"] == 0 and found["session_recall@10"] == 0
    assert scored("abcdefghiz", "z")["mrr@10"] == pytest.approx(0.1)


@given(NAMES, GOLD)
def test_recall_never_falls_with_the_depth_and_bounds_the_reciprocal_rank(
    found: list[str], gold: frozenset[str]
) -> None:
    one = scored(found, gold)
    recalls = [one[name] for name in measures.RECALLS]
    assert recalls == sorted(recalls)
    assert one["session_recall@1"] <= one["mrr@10"] <= one["session_recall@10"]
    assert one["empty"] == (not found)


@given(NAMES, GOLD, st.randoms(use_true_random=False))
def test_the_order_inside_a_cut_does_not_change_the_recall_there(
    found: list[str], gold: frozenset[str], chance: Any
) -> None:
    distinct = list(dict.fromkeys(found))
    for k in measures.CUTS:
        head, tail = distinct[:k], distinct[k:]
        chance.shuffle(head)
        name = f"session_recall@{k}"
        assert scored([*head, *tail], gold)[name] == scored(distinct, gold)[name]


@given(NAMES, GOLD)
def test_repetitions_change_no_score(found: list[str], gold: frozenset[str]) -> None:
    repeated = [name for name in found for _ in range(3)]
    assert scored(repeated, gold) == scored(found, gold)


@given(NAMES, GOLD)
def test_moving_a_right_session_to_the_front_makes_no_score_worse(
    found: list[str], gold: frozenset[str]
) -> None:
    before, after = scored(found, gold), scored([min(gold), *found], gold)
    assert all(after[name] >= before[name] for name in (*measures.RECALLS, "mrr@10"))


VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30)


@settings(max_examples=15, deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_an_interval_holds_the_mean_and_does_not_depend_on_the_order_of_the_questions(
    values: list[float], chance: Any
) -> None:
    rows = [(value,) for value in values]
    shuffled = chance.sample(rows, len(rows))
    one = measures.bootstrap(rows)
    assert one == measures.bootstrap(shuffled)
    assert min(values) <= one[0].low <= one[0].high <= max(values)
    assert one[0].low - 1e-9 <= one[0].mean <= one[0].high + 1e-9
    assert one[0].mean == pytest.approx(sum(values) / len(values))


def test_the_interval_of_a_share_is_about_that_of_the_binomial() -> None:
    rows = [(float(n < 60),) for n in range(100)]
    one = measures.bootstrap(rows)[0]
    assert one.low == pytest.approx(0.504, abs=0.02) and one.high == pytest.approx(0.696, abs=0.02)


@settings(max_examples=10, deadline=None)
@given(VALUES)
def test_a_mode_does_not_differ_from_itself(values: list[float]) -> None:
    one = measures.paired(values, values)
    assert (one.mean, one.low, one.high, one.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_paired_difference_is_sure_where_every_question_agrees() -> None:
    better, worse = [1.0] * 12 + [0.0] * 8, [0.0] * 20
    one, other = measures.paired(better, worse), measures.paired(worse, better)
    assert one.mean == pytest.approx(0.6) and one.low > 0 and one.p < 0.01
    assert other.mean == pytest.approx(-0.6) and other.high < 0
    even = measures.paired([1.0, 0.0] * 10, [0.0, 1.0] * 10)
    assert even.mean == 0 and even.low < 0 < even.high and even.p > 0.5


def test_a_summary_has_means_intervals_and_categories(tmp_path: Path) -> None:
    found = {
        "q-exact": Answer(("garden",), ("g0",)),
        "q-loose": Answer(("tea", "bicycle"), ("t0", "b1")),
        "q-tea": Answer(),
        "q-none": Answer(),
    }
    one = measures.summary(tiny(tmp_path), found)
    assert one["n"] == 3 and one["unanswerable_n"] == 1 and one["unanswerable_empty"] == 1.0
    assert one["session_recall@1"] == pytest.approx(1 / 3, abs=1e-4)
    assert one["session_recall@5"] == pytest.approx(2 / 3, abs=1e-4)
    assert one["mrr@10"] == pytest.approx(0.5) and one["hit@5"] == pytest.approx(1 / 3, abs=1e-4)
    assert one["empty"] == pytest.approx(1 / 3, abs=1e-4)
    assert set(one["intervals"]) == {*measures.METRICS, "unanswerable_empty"}
    assert one["categories"]["loose"]["n"] == 2
    assert one["categories"]["loose"]["session_recall@3"] == 0.5
    assert one["categories"]["loose"]["unanswerable_empty"] is None


def test_the_curve_gives_recall_at_every_depth(tmp_path: Path) -> None:
    found = {
        "q-exact": Answer(("garden",)),
        "q-loose": Answer(("tea", "garden", "bicycle")),
        "q-tea": Answer(),
    }
    assert measures.curve(tiny(tmp_path), found)[:4] == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])


# -- settings and cache ------------------------------------------------------------------


def test_the_modes_differ_in_the_configuration_alone() -> None:
    source = Source({"provider": "local", "weights": {"relaxed": 0.5}})
    weights = {mode: source.of_mode(mode).get("weights") for mode in evaluation.MODES}
    assert weights == {
        "host": None,
        "keyword": {"exact": 1.0, "relaxed": 0.5, "vector": 0.0},
        "vector": {"exact": 0.0, "relaxed": 0.0, "vector": 1.0},
        "hybrid": {"exact": 1.0, "relaxed": 0.5, "vector": 1.0},
    }
    assert source.of_mode("host") == {"provider": "off"}
    assert source.of_mode(running.FLOOR) == source.of_mode("vector")
    gate = Source({"weights": {"relaxed": 0.0}}).of_mode(running.GATE)["weights"]
    assert gate["relaxed"] == 1.0 and gate["vector"] == 0.0


def test_variables_of_a_configuration_are_handed_on_and_not_copied(tmp_path: Path) -> None:
    block = {"provider": "openai", "remote": {"apiKey": "${THEIR_KEY}"}}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"agents": {"defaults": {"memorySearch": block}}}))
    (tmp_path / ".env").write_text("THEIR_KEY=sesame\nOTHER=no\n")
    source = Source.read(path, None)
    assert source.variables == {"THEIR_KEY": "sesame"}
    assert "sesame" not in json.dumps(source.of_mode("hybrid")) + repr(source)
    assert Source.read(None, "local").block == {"provider": "local"}
    with pytest.raises(HermesPatchError, match="there is no such file"):
        Source.read(tmp_path / "missing.yaml", None)


def test_a_kept_database_is_found_again_for_the_same_set_space_and_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    one, chosen = tiny(tmp_path), Settings()
    place = saved.Saved.of(one, chosen, tmp_path, 22)
    assert place.path.parent == tmp_path / "cache" / "hermes-patch" / "eval"
    assert place == saved.Saved.of(one, Settings(min_similarity=0.9), tmp_path, 22)
    other_text = replace(one, sessions=one.sessions[:2])
    assert saved.Saved.of(other_text, chosen, tmp_path, 22) != place
    assert saved.Saved.of(one, Settings(max_tokens=100), tmp_path, 22) != place
    assert saved.Saved.of(one, chosen, tmp_path, 31) != place


def test_a_kept_database_comes_back_whole_or_not_at_all(tmp_path: Path) -> None:
    database, back = tmp_path / "state.db", tmp_path / "back.db"
    conn = sqlite3.connect(database)
    conn.execute("CREATE TABLE t AS SELECT 7 AS x")
    conn.commit()
    conn.close()
    place = saved.Saved(tmp_path / "deep" / "kept.db")
    assert not place.restore(back)
    place.keep(database)
    assert place.restore(back)
    assert sqlite3.connect(back).execute("SELECT x FROM t").fetchone() == (7,)
    assert [path.name for path in place.path.parent.iterdir()] == ["kept.db"]
    place.path.write_bytes(b"no database at all" * 100)
    assert not place.restore(back)
    assert not back.exists() and not place.path.exists()


# -- the report --------------------------------------------------------------------------

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Fails where tags do not close in order; collects texts, ids of pictures, attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.labels += [value or "" for name, value in attrs if name == "aria-label"]
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def hits(*sessions: str) -> list[Hit]:
    return [Hit(session, None) for session in sessions]


def made_up(folder: Path) -> tuple[dict[str, Any], list[sets.EvaluationSet], Any, Any]:
    """Return figures, sets, answers and swept legs as the command has them, of two sets."""
    one = tiny(folder)
    two = replace(one, name='<b>&"other"', unanswerable=())
    found = {
        "q-exact": hits("garden", "tea"),
        "q-loose": hits("tea", "bicycle"),
        "q-tea": hits("tea"),
        "q-none": hits("tea"),
    }
    modes = {
        "host": Asked({name: [] for name in found}),
        "hybrid": Asked(found, "stub"),
    }
    legs = swept_legs()
    asked = {one.name: modes, two.name: modes}
    summaries = {
        each.name: {
            mode: measures.summary(each, modes[mode].answers()) for mode in ("host", "hybrid")
        }
        for each in (one, two)
    }
    pairs = evaluation._comparisons(one, modes)
    data = {
        "hermes": "hermes-agent <0>",
        "model": "stub",
        "sets": summaries,
        "comparisons": {one.name: pairs, two.name: pairs},
    }
    return data, [one, two], asked, {one.name: legs, two.name: legs}


def swept_legs() -> dict[str, Swept]:
    """Return both legs: the nearest hit, and answers that end where it is no longer reached."""
    best = {
        "q-exact": Best("garden", 0.7),
        "q-loose": Best("tea", 0.5),
        "q-tea": Best("tea", 0.6),
        "q-none": Best("tea", 0.2),
    }
    found = {"q-exact": "garden", "q-loose": "bicycle", "q-tea": "tea", "q-none": "tea"}
    answers = {
        name: [[found[name]] if threshold <= one.strength else [] for threshold in THRESHOLDS]
        for name, one in best.items()
    }
    return {
        running.FLOOR: Swept(THRESHOLDS, {"floor": 0.4, "opening": 0.42}, answers, best),
        running.GATE: Swept(THRESHOLDS, {"alone": 0.25, "beside vectors": 0.35}, answers),
    }


def check_report(text: str, names: list[str], modes: list[str]) -> Page:
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert "http://" not in text and "https://" not in text and "src=" not in text
    assert "script" not in page.tags and "link" not in page.tags and "@import" not in text
    assert "prefers-color-scheme: dark" in text
    for name in names:
        assert page.texts.count(name) >= 3
        assert any(label.startswith(f"{name}: session recall") for label in page.labels)
    for mode in modes:
        assert page.texts.count(mode) >= 2 * len(names)
    return page


def test_the_report_is_valid_self_contained_and_shows_every_set_and_mode(tmp_path: Path) -> None:
    data, given_sets, asked, swept = made_up(tmp_path)
    page = check_report(
        report.page(data, given_sets, asked, swept), ["tiny", '<b>&"other"'], ["host", "hybrid"]
    )
    for mark in ("floor 0.40", "opening 0.42", "alone 0.25", "beside vectors 0.35"):
        assert page.texts.count(mark) >= 2
    assert page.tags.count("svg") == 8
    # Heads of two tables and the lines of one set: not where no question is without an answer.
    assert page.texts.count("empty") == 4
    assert "recall@5: 1.00 (opening)" in page.texts
    assert "NaN" not in "".join(page.texts)


def test_the_report_of_hermes_alone_has_no_similarities(tmp_path: Path) -> None:
    data, given_sets, asked, _ = made_up(tmp_path)
    data["model"] = None
    for modes in data["sets"].values():
        del modes["hybrid"]
    alone = {name: {"host": modes["host"]} for name, modes in asked.items()}
    none: dict[str, dict[str, Swept]] = {name: {} for name in asked}
    page = check_report(report.page(data, given_sets, alone, none), ["tiny"], ["host"])
    assert page.tags.count("svg") == 2 and "keywords only" in "".join(page.texts)


def test_best_hits_are_right_wrong_or_of_a_question_without_an_answer(tmp_path: Path) -> None:
    found = trade.best_hits(tiny(tmp_path), swept_legs()[running.FLOOR])
    assert found == {"right": [0.7, 0.6], "wrong": [0.5], "hopeless": [0.2]}


def test_a_curve_counts_gold_sessions_and_empty_answers_at_every_threshold(tmp_path: Path) -> None:
    given = tiny(tmp_path)
    line = {point.threshold: point for point in trade.points(given, swept_legs()[running.GATE])}
    assert [line[x].recall for x in (0.0, 0.5, 0.55, 0.65, 1.0)] == pytest.approx(
        [1, 1, 2 / 3, 1 / 3, 0]
    )
    assert [line[x].quiet for x in (0.0, 0.2, 0.21)] == [0, 0, 1]
    alone = trade.points(replace(given, unanswerable=()), swept_legs()[running.GATE])
    assert {point.quiet for point in alone} == {None}


def test_the_curve_of_the_similarities_spans_the_best_hits_and_what_is_in_use(
    tmp_path: Path,
) -> None:
    near = swept_legs()[running.FLOOR]
    line = trade.points(tiny(tmp_path), near)
    assert (line[0].threshold, line[-1].threshold) == (0.15, 0.7)
    wide = replace(near, used={"floor": 0.1, "opening": 0.9})
    line = trade.points(tiny(tmp_path), wide)
    assert (line[0].threshold, line[-1].threshold) == (0.05, 0.9)


@pytest.mark.parametrize("leg", [running.FLOOR, running.GATE])
def test_a_printed_curve_has_about_twenty_points_and_those_in_use(leg: str, tmp_path: Path) -> None:
    swept = swept_legs()[leg]
    shown = [
        point.threshold for point in trade.thinned(trade.points(tiny(tmp_path), swept), swept.used)
    ]
    assert 15 <= len(shown) <= 25 and shown == sorted(set(shown))
    assert set(swept.used.values()) <= set(shown)


# -- a real Hermes -----------------------------------------------------------------------


@dataclass
class Place:
    """A stub server, a set, and folders in the place of the user's."""

    python: Path
    folder: Path
    server: StubServer

    def run(self, *options: str, files: tuple[str, ...] = ("tiny.json",)) -> dict[str, Any]:
        """Run the command with ``--json`` and return what it prints."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--json", action="store_true")
        evaluation.add_options(parser)
        words = [str(self.folder / name) for name in files]
        words += ["--json", "--config", str(self.folder / "their.yaml"), *options]
        out = io.StringIO()
        with redirect_stdout(out):
            code = evaluation.command(parser.parse_args(words), self.python)
        assert code == 0
        result: dict[str, Any] = json.loads(out.getvalue())
        return result


@pytest.fixture(scope="module")
def place(hermes_019: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("evaluation")
    written(folder, TINY)
    (folder / "theirs").mkdir()
    with StubServer() as server, pytest.MonkeyPatch.context() as patch:
        (folder / "their.yaml").write_text(server.config(minSimilarity=0.4))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("HERMES_HOME", str(folder / "theirs"))
        yield Place(hermes_019.python, folder, server)


@pytest.fixture(scope="module")
def first(place: Place) -> dict[str, Any]:
    """What the first run over all modes prints."""
    return place.run("--report", str(place.folder / "out.html"))


def test_every_mode_is_measured_on_a_real_hermes(first: dict[str, Any]) -> None:
    modes = first["sets"]["tiny"]
    assert list(modes) == ["host", "keyword", "vector", "hybrid"]
    assert all(one["n"] == 3 for one in modes.values())
    assert first["hermes"] == "hermes-agent 0.19.0" and first["model"] == "stub"
    assert modes["host"]["session_recall@1"] == pytest.approx(1 / 3, abs=1e-4)
    assert modes["host"]["empty"] == pytest.approx(2 / 3, abs=1e-4)
    assert modes["keyword"]["session_recall@5"] >= 2 / 3 - 1e-4
    for mode in ("vector", "hybrid"):
        assert modes[mode]["session_recall@5"] == 1.0 == modes[mode]["hit@5"]
        assert modes[mode]["unanswerable_empty"] == 1.0
    pairs = {(one["mode"], one["against"]) for one in first["comparisons"]["tiny"]}
    assert len(pairs) == 6 and ("hybrid", "host") in pairs


def test_the_report_of_a_real_run_shows_the_floor(first: dict[str, Any], place: Place) -> None:
    text = (place.folder / "out.html").read_text("utf-8")
    page = check_report(text, ["tiny"], list(evaluation.MODES))
    assert "floor 0.40" in page.texts and page.tags.count("svg") == 4
    assert "beside vectors 0.35" in page.texts


def test_the_curves_agree_with_the_modes_where_they_are_in_use(
    first: dict[str, Any], place: Place
) -> None:
    modes, legs = first["sets"]["tiny"], first["curves"]["tiny"]
    at = {leg: {point[0]: point[1:] for point in line} for leg, line in legs.items()}
    in_use = [modes["vector"][metric] for metric in ("session_recall@5", "unanswerable_empty")]
    assert at["floor"][0.4] == in_use
    assert at["gate"][0.25][0] >= modes["host"]["session_recall@5"] and at["gate"][0.25][1] == 1.0
    assert "curves" not in place.run("--mode", "host")


def test_the_users_home_is_not_touched(first: dict[str, Any], place: Place) -> None:
    assert list((place.folder / "theirs").iterdir()) == []


def test_a_second_run_embeds_nothing(first: dict[str, Any], place: Place) -> None:
    kept = list((place.folder / "cache" / "hermes-patch" / "eval").iterdir())
    assert [path.suffix for path in kept] == [".db"]
    place.server.texts.clear()
    again = place.run("--mode", "hybrid")
    assert again["sets"]["tiny"]["hybrid"] == first["sets"]["tiny"]["hybrid"]
    documents = {m["text"] for session in TINY["sessions"] for m in session["messages"]}
    assert not documents & set(place.server.texts) and place.server.texts


def test_a_failing_server_ends_the_run_instead_of_counting_as_an_answer(
    first: dict[str, Any], place: Place
) -> None:
    place.server.mode = "500"
    try:
        with pytest.raises(HermesPatchError, match=r"question q-exact: unavailable") as raised:
            place.run("--mode", "vector")
    finally:
        place.server.mode = "fine"
    assert "tomato" not in str(raised.value)


def test_the_vector_mode_counts_nothing_that_hermes_found_by_itself(
    first: dict[str, Any], place: Place
) -> None:
    strict = place.folder / "strict.yaml"
    strict.write_text(place.server.config(minSimilarity=0.999))
    found = place.run("--mode", "vector", "--mode", "hybrid", "--config", str(strict))
    modes = found["sets"]["tiny"]
    assert modes["hybrid"]["session_recall@1"] > 0
    assert modes["vector"]["empty"] == 1.0


def test_two_files_with_one_name_are_refused(place: Place) -> None:
    written(place.folder, TINY, "copy.json")
    with pytest.raises(HermesPatchError, match="two of the files hold a set named 'tiny'"):
        place.run(files=("tiny.json", "copy.json"))


def test_a_report_that_cannot_be_written_is_refused_before_the_work(place: Place) -> None:
    with pytest.raises(HermesPatchError, match="expected a file in a folder that exists"):
        place.run("--report", str(place.folder / "nowhere" / "out.html"))


def test_the_table_for_a_terminal_has_a_line_for_every_mode(tmp_path: Path) -> None:
    data, _, _, _ = made_up(tmp_path)
    shown = evaluation.lines(data)
    assert shown[0] == "hermes-agent <0> · stub"
    assert sum("hybrid" in line for line in shown) == sum("host" in line for line in shown) == 2
    assert "1.00 (1.00–1.00)" in next(line for line in shown if "hybrid" in line)
