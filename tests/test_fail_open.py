"""Whatever breaks in our code, Hermes's calls answer as they do without us, byte for byte.

Every seam and every joint behind it is broken inside real releases of Hermes; the same calls
of an unpatched Hermes on a copy of the same database say what has to come out.
"""

from __future__ import annotations

import functools
import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import canaries
from hermes_patch import deploy, guard
from hermes_patch.guard import OPEN_AFTER
from stub_server import StubServer
from targets import Installed

SCRIPTS = Path(__file__).parent / "scripts"
HANG = 6.0
"""Seconds after which a hanging call comes back after all, far above every budget."""
SOON = 4.0
"""No call may take longer; the budgets are 0.15 s, the rest is slack for a busy machine."""
ALL, NO_RELAXED, NO_VECTOR, OFF = (1, 1, 1), (1, 0, 1), (1, 1, 0), (1, 0, 0)
OURS = ("semantic", "search_type", "similarity")


@dataclass(frozen=True)
class Seam:
    """Where to break: ``module:name``, with which weights, and what may differ then.

    ``may`` is "nothing", or "tell" where the tool's JSON may say what went wrong, or "find"
    where only the tool's JSON has to be Hermes's. ``thread`` is True where only a thread of
    ours calls it, so that SystemExit must not reach Hermes either. ``later`` waits for the
    worker.
    """

    place: str
    weights: tuple[int, int, int] = ALL
    may: str = "nothing"
    garbage: tuple[str, ...] = ("None", "number", "list", "NaN", "string")
    hangs: bool = True
    thread: bool = False
    later: bool = False


def in_thread(place: str, **more: Any) -> Seam:
    return Seam(place, thread=True, **more)


def writing(place: str, **more: Any) -> Seam:
    return Seam(place, weights=OFF, **more)


SEAMS = (
    # search_messages, on Hermes's thread
    Seam("host:Host.engine_of"),
    Seam("host:Host._engine"),
    Seam("host:Host._is_applied", hangs=False, garbage=("None",)),  # whether a file is there
    Seam("upstream:home", hangs=False, garbage=("None", "list")),  # a variable of Hermes
    Seam("recall:Call.bind", hangs=False),  # inspect.signature alone: nothing to wait for
    Seam("recall:widen", hangs=False, garbage=()),  # the whole of ours; its parts follow
    Seam("config:load_inside_hermes"),
    # search_messages, in our thread
    in_thread("query:parse"),
    in_thread("query:plain_text", weights=NO_RELAXED, may="tell", garbage=("number", "list")),
    in_thread("recall:_fuse"),
    in_thread("recall:_vector_query", weights=NO_RELAXED, may="tell"),
    in_thread("recall:describe"),
    in_thread("recall:Call.widened"),
    in_thread("engine:Engine.query_vector"),
    in_thread("engine:Engine.reader"),
    in_thread("engine:Engine.coverage"),
    in_thread("engine:connect_readonly"),
    in_thread("embedders:create"),
    in_thread("search:fuse", garbage=("rows", "no rows", "NaN hit")),
    in_thread("layout:read", may="tell"),
    in_thread("rows:load", may="tell"),
    in_thread("fusion:fuse", may="tell", garbage=("None", "number", "list", "NaN")),
    in_thread("nearest:nearest", weights=NO_RELAXED, may="tell"),
    in_thread("legs:vector", weights=NO_RELAXED, may="tell"),
    in_thread("relaxed:search", weights=NO_VECTOR, may="tell"),
    in_thread("relaxed:scorer_of", weights=NO_VECTOR, may="tell"),
    in_thread(
        "embedders.openai_api:OpenAIEmbedder.embed_query",
        weights=NO_RELAXED,
        may="tell",
        garbage=("None", "number", "list", "NaN", "vector", "string"),
    ),
    # the tool
    Seam("recall:annotate", may="find", garbage=("None", "number", "list", "NaN"), hangs=False),
    # writing: append_message and the write helper, replace_messages, clear_messages
    writing("host:Host.engine_of"),
    writing("host:Host._applied_at"),
    writing("host:Host._note_file", hangs=False),  # the number of a file
    writing("host:Host._wake_of"),
    writing("host:Host._carry", garbage=()),
    writing("worker:Worker.wake", hangs=False),  # sets an event, by design on Hermes's thread
    writing("worker:Registry.of"),
    writing("stash:session_vectors"),
    writing("stash:Stash.keep"),
    writing("host:connect_readonly"),
    writing("config:load_inside_hermes", later=True),
    writing("worker:Worker._attempt", thread=True, later=True),
    writing("worker:Worker._drain", thread=True, later=True),
    writing("engine:Engine.write", thread=True, later=True),
    writing("indexer:Indexer.index_batch", thread=True, later=True),
    writing("store:pending", thread=True, later=True),
    writing("worker:Worker._report", thread=True, later=True, hangs=False),
    writing(
        "embedders.openai_api:OpenAIEmbedder.embed_documents",
        thread=True,
        later=True,
        garbage=("None", "number", "list", "NaN", "vector", "string"),
    ),
)
AT_REGISTER = (
    "host:Host",
    "host:Host.install",
    "seams:_with_note",
    "host:Host._session_db_patches",
    "host:Host._tool_patches",
    "host:PatchSet",
    "methods:make",
    "config:load_inside_hermes",
    "plugin:register",
)
ERRORS = ("RuntimeError", "RecursionError", "MemoryError", "DatabaseError", "UnicodeError")


def cases_of(seam: Seam, turn: int) -> Iterator[dict[str, Any]]:
    """Yield the faults of one seam; each version of Hermes gets others of the exotic ones.

    SystemExit and a hang in a thread of ours come with one version each, to save time.
    """
    base = {"seam": seam.place, "weights": seam.weights, "later": seam.later, "seconds": 10.0}
    yield {**base, "kind": "raise", "name": ERRORS[turn % len(ERRORS)]}
    if seam.thread and turn % 3 == 1:
        yield {**base, "kind": "raise", "name": "SystemExit"}
    if seam.garbage:
        yield {**base, "kind": "garbage", "name": seam.garbage[turn % len(seam.garbage)]}
    if seam.hangs and (not seam.thread or turn % 3 == 0):
        yield {**base, "kind": "hang", "name": "", "seconds": 0.15}


def key(case: dict[str, Any]) -> tuple[Any, ...]:
    return case["seam"], tuple(case["weights"])


@dataclass
class Runs:
    """The calls of an unpatched Hermes, of a patched one, and with every fault."""

    plain: dict[str, str]
    sound: dict[str, Any]
    broken: list[tuple[dict[str, Any], dict[str, Any]]]

    def of(self, seam: Seam) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        wanted = (seam.place, seam.weights)
        return [p for p in self.broken if key(p[0]) == wanted and not p[0].get("at_register")]


@pytest.fixture(scope="module")
def runs(hermes: Installed, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("faults")
    home, other = folder / "home", folder / "unpatched"
    for each in (home, other):
        each.mkdir()
    hermes.run(SCRIPTS / "history.py", home=home)
    turn = ("0.9", "0.19", "0.22").index(hermes.target.name.split("-")[1].rpartition(".")[0])
    sound = {"seam": "", "weights": ALL, "kind": "none", "seconds": 30.0}
    cases = [case for n, seam in enumerate(SEAMS) for case in cases_of(seam, turn + n)]
    for n, place in enumerate(AT_REGISTER):
        case = {"seam": place, "weights": ALL, "at_register": True, "seconds": 10.0}
        cases.append({**case, "kind": "raise", "name": ERRORS[(turn + n) % len(ERRORS)]})
    with StubServer() as server:
        (home / "config.yaml").write_text(server.config(minSimilarity=0.2))
        deploy.apply(home, hermes_python=hermes.python)
        backfill(hermes, home)
        copied(home, other)
        (plain,) = ask(hermes, other, []).values()
        results = ask(hermes, home, [sound, *cases])["results"]
    return Runs(plain, results[0], list(zip(cases, results[1:], strict=True)))


def ask(hermes: Installed, home: Path, cases: list[dict[str, Any]]) -> Any:
    given = json.dumps({"cases": cases, "hang": HANG})
    return hermes.run_json(SCRIPTS / "faults.py", home=home, stdin=given, timeout=280)


def backfill(hermes: Installed, home: Path) -> None:
    code = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"
    path = {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}
    hermes.run(code, "backfill", "--hermes-home", str(home), home=home, env=path)


def copied(home: Path, other: Path) -> None:
    conn = sqlite3.connect(home / "state.db")
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()
    shutil.copy(home / "state.db", other / "state.db")


def without_ours(answer: str) -> str:
    """Return the tool's JSON without what we add to it; anything else as it is."""
    try:
        data = json.loads(answer)
    except ValueError:
        return answer
    if not isinstance(data, dict):
        return answer
    for entry in [data, *data.get("results", [])]:
        for name in OURS:
            entry.pop(name, None)
    return json.dumps(data, ensure_ascii=False)


def expected(runs: Runs, seam: Seam) -> dict[str, str]:
    if seam.may == "find":
        return {name: without_ours(text) for name, text in runs.sound["answers"].items()}
    return runs.plain


def seen(result: dict[str, Any], seam: Seam) -> dict[str, str]:
    answers: dict[str, str] = result["answers"]
    if seam.may == "tell":
        return {name: without_ours(text) for name, text in answers.items()}
    return answers


def name_of(seam: Seam) -> str:
    return f"{seam.place.replace(':', '.')}{'-writing' if seam.weights == OFF else ''}"


every_seam = pytest.mark.parametrize("seam", SEAMS, ids=name_of)


def test_without_a_fault_we_find_more_than_hermes_alone(runs: Runs) -> None:
    sound = runs.sound["answers"]
    assert json.loads(sound["tool"])["semantic"]["status"] == "ok"
    assert without_ours(sound["tool"]) != runs.plain["tool"]
    assert sound["search"] != runs.plain["search"]


def test_hermes_own_errors_are_among_the_calls(runs: Runs) -> None:
    raised = [name for name, text in runs.plain.items() if text.startswith("raised ")]
    assert {"no query", "no session", "wrong limit"} <= set(raised)


@every_seam
def test_every_fault_was_reached(runs: Runs, seam: Seam) -> None:
    assert [case for case, result in runs.of(seam) if not result["calls"]] == []


@every_seam
def test_answers_and_errors_are_those_of_an_unpatched_hermes(runs: Runs, seam: Seam) -> None:
    for case, result in runs.of(seam):
        assert seen(result, seam) == expected(runs, seam), case


@every_seam
def test_no_call_takes_longer_than_its_budget(runs: Runs, seam: Seam) -> None:
    for case, result in runs.of(seam):
        assert all(seconds < SOON for seconds in result["slow"].values()), (case, result["slow"])


@every_seam
def test_hermes_log_gets_one_line_for_each_cause_and_no_traceback(runs: Runs, seam: Seam) -> None:
    for case, result in runs.of(seam):
        assert len(set(result["ours"])) == len(result["ours"]), case
        assert all("\n" not in line and not canaries.shown(line) for line in result["ours"]), case
        assert "Traceback" not in result["stderr"], (case, result["stderr"])
        assert not canaries.shown(result["stderr"]), (case, result["stderr"])


def test_a_part_that_keeps_failing_is_left_alone(runs: Runs) -> None:
    for place in ("host:Host._wake_of", "host:Host._carry", "recall:_fuse"):
        for seam in (seam for seam in SEAMS if seam.place == place):
            for case, result in runs.of(seam):
                assert case["kind"] == "garbage" or result["calls"] <= OPEN_AFTER, case


def test_a_failure_is_noted_even_where_the_hosts_log_fails(monkeypatch: Any) -> None:
    def full(*_args: object) -> None:
        raise RecursionError

    monkeypatch.setattr(guard.log, "warning", full)
    assert guard.Guard().run("search", lambda: 1 // 0, "rows") == "rows"


def test_what_would_end_a_thread_of_ours_ends_no_other() -> None:
    watched = guard.Guard()
    for fatal in (SystemExit, GeneratorExit, KeyboardInterrupt):
        work = functools.partial(guard.run_within, 10, functools.partial(throw, fatal), "search")
        assert watched.run("search", work, "rows") == "rows"


def throw(error: type[BaseException]) -> None:
    raise error


def test_a_vector_leg_that_fails_is_said_to_have_failed(runs: Runs) -> None:
    seam = next(s for s in SEAMS if s.place.endswith("embed_query"))
    for case, result in runs.of(seam):
        status = json.loads(result["answers"]["tool"]).get("semantic", {}).get("status", "")
        assert status != "ok", case


@pytest.mark.parametrize("place", AT_REGISTER)
def test_a_plugin_that_cannot_be_installed_leaves_hermes_untouched(runs: Runs, place: str) -> None:
    ((case, result),) = [
        pair for pair in runs.broken if key(pair[0]) == (place, ALL) and pair[0].get("at_register")
    ]
    assert result["calls"] == 1, case
    assert not result["patched"] and result["answers"] == runs.plain
    assert len(result["ours"]) == 1 and not canaries.shown(result["ours"][0])
    assert "Traceback" not in result["stderr"]
