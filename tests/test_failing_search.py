"""What can go wrong with a search, brought about: on real Hermes where that matters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databases import DIMS, SPACE, HostDatabase
from hermes_patch import deploy, search
from hermes_patch.layout import Filters
from hermes_patch.legs import VectorQuery
from hermes_patch.search import Request
from live import Live, TwinServer, package
from targets import Installed
from test_surroundings import profile

EAST = (1.0, 0.0, 0.0)


@pytest.fixture(scope="session")
def plugin(hermes: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is deployed for a release."""
    return package(hermes, tmp_path_factory.mktemp(hermes.target.name))


@pytest.fixture(scope="session")
def plugin_019(hermes_019: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is deployed for Hermes 0.19.0."""
    return package(hermes_019, tmp_path_factory.mktemp("hermes-0.19.0"))


@pytest.fixture
def server() -> Iterator[TwinServer]:
    with TwinServer() as running:
        yield running


# Operators


@pytest.mark.parametrize(
    ("asked", "plain"),
    [
        ("docker OR kubernetes", "docker kubernetes"),
        ('"exact phrase" of mine', "exact phrase of mine"),
        ("deploy*", "deploy"),
        ("python NOT java", "python"),
    ],
)
def test_the_server_is_asked_in_plain_words(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer, asked: str, plain: str
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('a', 'python packaging for java programs'); settle()")
        live(f"asked({asked!r})")
    assert server.messages[1:] == [plain]


def test_a_quoted_query_is_not_sent_at_all(
    hermes_019: Installed, plugin_019: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes_019, home, plugin_019) as live:
        live("db = opened(); append('a', 'an exact phrase of mine'); settle()")
        assert live("found('\"exact phrase\"')") == ["a"]
    assert len(server.messages) == 1


def test_a_term_after_not_is_in_no_hit_by_meaning(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live("db = opened(); append('java', 'python packaging for the java programs')")
        live("append('pure', 'packaging python wheels'); settle()")
        assert live("found('packaging the python programs')[:1]") == ["java"]
        assert live("found('packaging python programs NOT java')") == ["pure"]


# Hidden text


UNDO = """
db.create_session("trip", source="cli")
first = db.append_message("trip", "user", "we planned the trip by train")
second = db.append_message("trip", "user", "the secret surprise party for the aunt")
settle()
"""


def test_rewound_text_is_hidden_until_it_is_restored(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live(f"db = opened()\n{UNDO}")
        if not live("hasattr(db, 'rewind_to_message')"):
            pytest.skip("this version has no rewind")
        question = "'aunt surprise party secret'"
        assert live(f"found({question})") == ["trip"]
        live("db.rewind_to_message('trip', second)")
        assert live(f"found({question})") == []
        assert live(f"found({question}, include_inactive=True)") == ["trip"]
        if live("hasattr(db, 'restore_rewound')"):
            live("db.restore_rewound('trip', second)")
            assert live(f"found({question})") == ["trip"]


def test_compacted_text_is_still_found(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live(f"db = opened()\n{UNDO}")
        if not live("hasattr(db, 'archive_and_compact')"):
            pytest.skip("this version compacts into a new session")
        live("db.archive_and_compact('trip', [{'role': 'user', 'content': 'in short: a trip'}])")
        assert live("how('aunt surprise party secret the')") == [["trip", "both"]]


def test_text_of_display_kind_hidden_is_not_found(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    with Live(hermes, home, plugin) as live:
        live(f"db = opened()\n{UNDO}")
        columns = live("[row[1] for row in db._conn.execute('PRAGMA table_info(messages)')]")
        if "display_kind" not in columns:
            pytest.skip("this version hides no messages")
        hide = "UPDATE messages SET display_kind = 'hidden' WHERE id = ?"
        question = "'aunt surprise party secret'"
        assert live(f"found({question})") == ["trip"]
        live(f"db._conn.execute({hide!r}, (second,))")
        assert live(f"found({question})") == []


# Filters

NARROWED: dict[str, dict[str, Any]] = {
    "source_filter": {"source_filter": ["telegram"]},
    "exclude_sources": {"exclude_sources": ["cli"]},
    "role_filter": {"role_filter": ["assistant"]},
    "after_ts": {"after_ts": 1500},
    "before_ts": {"before_ts": 1500},
    "include_inactive": {"include_inactive": True},
}
EXPECTED = {
    "source_filter": {"telegram"},
    "exclude_sources": {"telegram"},
    "role_filter": {"assistant"},
    "after_ts": {"telegram"},
    "before_ts": {"cli", "assistant"},
    "include_inactive": {"cli", "assistant", "telegram", "undone"},
}


@pytest.mark.parametrize("leg", ["relaxed", "vector"])
@pytest.mark.parametrize("name", [*NARROWED, "none"])
def test_every_filter_is_honoured_by_our_legs(tmp_path: Path, name: str, leg: str) -> None:
    db = HostDatabase(tmp_path / "state.db", "external")
    text, vector = "the nginx certificate was renewed", EAST if leg == "vector" else None
    labels = {
        db.say("one", text + " once", vector=vector): "cli",
        db.say("one", text + " twice", role="assistant", vector=vector): "assistant",
        db.say("one", text + " undone", vector=vector, active=0, compacted=0): "undone",
    }
    db.clock = 2000.0
    db.session("two", source="telegram")
    labels[db.say("two", text + " thrice", vector=vector)] = "telegram"
    for number in range(20):
        db.say("noise", f"filler about weather report {number}")
    reader = db.reader()
    outcome = search.fuse(
        reader,
        [],
        Request("nginx certificate renewal", Filters(**NARROWED.get(name, {})), limit=50),
        VectorQuery(SPACE, DIMS, EAST, 0.3) if vector else None,
        relaxed=leg == "relaxed",
        weights=(1.0, 1.0, 1.0),
        rrf_k=60,
    )
    reader.close()
    db.conn.close()
    expected = EXPECTED.get(name, {"cli", "assistant", "telegram"})
    assert {labels[row["id"]] for row in outcome.rows} == expected


FILLED = """
import inspect
def say(session, text, source="cli", role="user", at=None):
    if db.get_session(session) is None:
        db.create_session(session, source=source)
        if at:
            db._execute_write(lambda c: c.execute(
                "UPDATE sessions SET started_at = ? WHERE id = ?", (at, session)))
    return db.append_message(session, role, text)
db = opened()
say("old", "the nginx certificate was renewed by certbot", at=1000)
say("old", "renewing the nginx certificate worked", role="assistant")
say("chat", "nginx certificate is renewed again", source="telegram", at=2000)
say("late", "who renews a nginx certificate", at=3000)
settle()
has = list(inspect.signature(type(db).search_messages).parameters)
"""


def test_every_filter_of_a_release_narrows_what_we_add_as_it_narrows_hermes(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    question = "nginx certificate"  # in every message: Hermes finds all, and so do we
    calls: dict[str, dict[str, Any]] = {
        **NARROWED,
        "offset": {"offset": 1},
        "sort": {"sort": "newest"},
        "fields": {"fields": ["id", "session_id", "snippet"]},
    }
    with Live(hermes, home, plugin) as live, Live(hermes, home, None) as plain:
        live(FILLED)
        plain("db = opened()")
        has = live("has")
        for name, more in calls.items():
            if name not in has:
                continue
            options = ", ".join(f"{key}={value!r}" for key, value in more.items())
            told = f"db.search_messages(query={question!r}, limit=20, {options})"
            theirs, ours = plain(told), live(told)
            assert sorted(row["id"] for row in ours) == sorted(row["id"] for row in theirs), name
            assert {tuple(row) for row in ours} == {tuple(row) for row in theirs}, name
            told = told.replace(question, "certificate of nginx renewals with certbot")
            by_meaning = live(told)
            if name == "sort":
                ids = [row["id"] for row in by_meaning]
                assert ids == sorted(ids, reverse=True)
            allowed = plain(f"db.search_messages(query='nginx', limit=20, {options})")
            every = {row["id"] for row in allowed}
            assert name == "offset" or {row["id"] for row in by_meaning} <= every, name
        assert live("failures()") == []


# Nothing relevant


OPERATIONS = [
    "The nightly backup of the postgres database failed with a timeout",
    "Increase max_connections and restart postgres",
    "nginx returned 502 because the upstream socket was gone",
    "Kubernetes evicted the pod after it ran out of memory",
    "Rotate the TLS certificates on the load balancer before Friday",
    "The disk of the build server is full; clear the docker cache",
    "Deploy of version 2.3 was rolled back, the migration locked a table",
    "Prometheus alerts are noisy, raise the threshold to five minutes",
    "磁盘清理：删除旧日志和缓存",
    "服务器重启之后数据库连接失败",
    "把 nginx 的超时时间改成 60 秒",
    "The cron job that syncs the S3 bucket ran twice",
]


def test_a_cooking_question_to_an_operations_history_finds_nothing(
    hermes_019: Installed, home: Path
) -> None:
    deploy.apply(home, hermes_python=hermes_019.python)  # with the model on this machine
    with Live(hermes_019, home, home / "plugins" / "hermes_patch") as live:
        live("db = opened()")
        for number, text in enumerate(OPERATIONS):
            live(f"append('s{number}', {text!r})")
        assert live("settle(seconds=110)")
        assert live(f"db.embedding_count() == {len(OPERATIONS)}")
        assert live("asked('why did the database backup not run?')['results']") != []
        for question in (
            "how long do I bake sourdough bread?",
            "a recipe for lentil soup with cumin",
            "which wine goes with roast duck",
            "红烧肉怎么做才好吃",
        ):
            answer = live(f"asked({question!r})")
            assert answer["results"] == [], (question, answer["results"])
            assert answer["semantic"]["status"] == "ok"


# The rules of the host's tool


RULES = """
def say(session, text, source="cli", parent=None):
    db.create_session(session, source=source, parent_session_id=parent)
    db.append_message(session, "user", text)
db = opened()
for number, source in enumerate(["cron", "cron", "tool", "subagent", "cli", "telegram"]):
    say(f"{source}{number}", f"the nightly nginx certificate report number {number}", source)
say("parent", "the nightly nginx certificate report of the parent")
say("current", "the nightly nginx certificate report of the child", parent="parent")
"""


def test_current_session_sub_agents_tools_and_cron_are_treated_as_by_hermes_alone(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    seen = {}
    with Live(hermes, home, plugin) as live, Live(hermes, home, None) as plain:
        live(f"{RULES}\nsettle()")
        plain("db = opened()")
        for name, run in (("ours", live), ("theirs", plain)):
            answer = run("asked('nightly nginx certificate report', current_session_id='current')")
            seen[name] = [row["session_id"] for row in answer["results"]]
        by_meaning = live(
            "asked('report of certificates for nginx at night: the number',"
            " current_session_id='current')"
        )
    assert sorted(seen["ours"]) == sorted(seen["theirs"])
    cron = [name.startswith("cron") for name in seen["theirs"]]
    assert [name.startswith("cron") for name in seen["ours"]] == cron
    found = [row["session_id"] for row in by_meaning["results"]]
    assert found and not {"current", "parent"} & set(found)
    assert not any(name.startswith("tool") for name in found)
    if hermes.target.schema >= 22:
        assert not any(name.startswith("subagent") for name in found)
        order = [name.startswith("cron") for name in found]
        assert order == sorted(order)  # after the conversations of people


def test_a_loopback_server_is_reached_although_a_dead_proxy_is_set(
    hermes: Installed, plugin: Path, home: Path, server: TwinServer
) -> None:
    profile(home, server)
    dead = "http://127.0.0.1:9"
    names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")
    env = {**dict.fromkeys(names, dead), "NO_PROXY": "", "no_proxy": ""}
    with Live(hermes, home, plugin, env=env) as live:
        live("db = opened(); append('pump', 'the garden pump leaks'); settle()")
        assert live("how('leaks the garden pump')") == [["pump", "both"]]
        assert live("failures()") == []
