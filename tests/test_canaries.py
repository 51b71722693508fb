"""No key and no text of a message is in anything we say, whatever fails.

What is said while other tests run is watched as well: see ``canaries``.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from hermes_patch.backfill import HomeDatabase, Plan

import canaries
from canaries import KEY, PASSWORD, TEXT, TEXT_CJK, USER
from hermes_patch import config, deploy, indexer, query, recall, rows, search, store, worker
from hermes_patch import text as texts
from hermes_patch.child import client
from hermes_patch.embedders.base import Item
from hermes_patch.embedders.openai_api import OpenAIEmbedder
from hermes_patch.engine import Engine, QueryVector
from hermes_patch.errors import EmbedderError, HermesPatchError
from hermes_patch.guard import Guard
from hermes_patch.host import Host
from hermes_patch.nearest import Neighbour
from hermes_patch.query import Query
from stub_server import StubServer
from targets import Installed

TESTS = Path(__file__).parent
TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
FAILURES = ("401", "400", "500", "hang", "garbage", "echo", "nan", "wrong-count")
FILL = f"""
import os
from pathlib import Path
from hermes_state import SessionDB
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
for n, text in enumerate([{TEXT!r}, {TEXT_CJK!r}, "nothing of note"]):
    db.create_session(f"s{{n}}", source="cli")
    db.set_session_title(f"s{{n}}", f"{{text}} ({{n}})")
    db.append_message(f"s{{n}}", "user", text)
    db.append_message(f"s{{n}}", "assistant", f"noted: {{text}}")
db.close()
"""
# The pauses between tries are left out, since a server that fails for good is asked often.
CLI = """
import sys, time
time.sleep = lambda seconds: None
import hermes_patch.backfill as backfill
import hermes_patch.embedders.batches as batches
backfill.ATTEMPTS = 2
batches._backoff = lambda attempt: 0.0
from hermes_patch.cli import main
sys.exit(main(sys.argv[1:]))
"""
LIVE = f"""
import json, os, sys, time
from pathlib import Path
import model_tools
import tools.session_search_tool as tool
from hermes_state import SessionDB
ours = sys.modules["hermes_patch"]
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
worker = sys.modules["hermes_patch.worker"]
worker.DEBOUNCE = 0.01
db.append_message("s0", "user", {TEXT!r} + " indeed")
db.append_message("s1", "user", {TEXT_CJK!r} + "!")
engine = ours._host.engine_of(db)
deadline = time.monotonic() + 20
while time.monotonic() < deadline and not engine.guard.failures():
    time.sleep(0.02)
time.sleep(0.3)
tool.session_search(query={TEXT!r}, db=db)
failures = engine.guard.failures()
objects = [engine, engine.embedder, engine.settings, engine.indexer, engine.guard, ours._host]
objects += list(ours._host.workers._workers.values())
print(json.dumps([ours.status(), [vars(f) for f in failures], repr(objects)], default=repr))
db.close()
"""


class EchoServer(StubServer):
    """A server that quotes the key and the texts in every place of an error it can."""

    seen = ""

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.seen = handler.headers.get("Authorization") or ""
        super()._answer(handler)

    def _payload(self, texts: list[str], status: int) -> dict[str, Any]:
        if status == 200 and self.mode != "echo":
            return super()._payload(texts, status)
        key = self.seen.split()[-1] if self.seen else ""
        said = f"the key {key} may not embed {' '.join(texts)}"
        error = {"message": said, "code": key, "type": texts[0], "param": said}
        return {"error": error, "code": key, "message": said, "data": said}


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as running:
        yield running


def configured(server: StubServer, userinfo: bool = False, **more: object) -> str:
    """Return a config.yaml with the canaries in every place that may hold a secret."""
    remote = {"baseUrl": server.url, "apiKey": KEY}
    if userinfo:
        remote = {"baseUrl": server.url.replace("://", f"://{USER}:{PASSWORD}@")}
    return server.config(remote=remote, timeout=0.2, queryBudget=0.5, **more)


@pytest.fixture(scope="module")
def filled(hermes_019: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose history holds the canary, with the plugin but no vectors."""
    home = tmp_path_factory.mktemp("canaries") / "home"
    home.mkdir()
    hermes_019.run(FILL, home=home)
    with EchoServer() as server:
        (home / "config.yaml").write_text(configured(server))
        said = outside(home, "apply", "--hermes-python", str(hermes_019.python))
    assert not canaries.shown(said)
    return home


@pytest.fixture
def home(filled: Path, tmp_path: Path) -> Path:
    """A copy of ``filled``."""
    return shutil.copytree(filled, tmp_path / "home")


def outside(home: Path, *words: str) -> str:
    """Run a command as a person does, from our own environment; return all it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "hermes_patch", *words, "--hermes-home", str(home)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        cwd=home,
    )
    return done.stdout + done.stderr


def inside(hermes: Installed, home: Path, *words: str) -> tuple[str, str]:
    """Run a command under Hermes's Python, without pauses; return its output and errors."""
    path = {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}
    done = hermes.run(CLI, *words, "--hermes-home", str(home), home=home, env=path, check=False)
    return done.stdout, done.stderr


def kept(home: Path) -> str:
    """Return everything that our tables say, without the vectors."""
    conn = sqlite3.connect(home / "state.db")
    try:
        names = [name for (name,) in conn.execute(TABLES)]
        ours = [n for n in names if n.startswith(("embedding_", "hermes_patch_"))]
        said = [conn.execute(f'SELECT * FROM "{name}"').fetchall() for name in ours]
    finally:
        conn.close()
    return repr(said)


def files_with_a_secret(home: Path) -> list[str]:
    """Return the files that hold a key, besides the configuration and Hermes's copies of it."""
    return [
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file()
        and not path.name.startswith("config.yaml")
        and "backups" not in path.parts
        and any(secret.encode() in path.read_bytes() for secret in canaries.SECRETS)
    ]


@pytest.mark.parametrize("userinfo", [False, True], ids=["key", "userinfo"])
@pytest.mark.parametrize("mode", FAILURES)
def test_a_backfill_that_fails_shows_neither_key_nor_text(
    hermes_019: Installed, home: Path, server: EchoServer, mode: str, userinfo: bool
) -> None:
    if userinfo and mode not in ("401", "400"):
        pytest.skip("the address is handled alike in every failure")
    (home / "config.yaml").write_text(configured(server, userinfo))
    server.mode = mode
    said = inside(hermes_019, home, "backfill", "--json")
    assert server.requests
    assert not canaries.shown("".join(said)), said
    assert not canaries.shown(kept(home))
    for words in (("status",), ("status", "--json")):
        assert not canaries.shown(outside(home, *words))
    assert files_with_a_secret(home) == []


def test_a_whole_life_shows_neither_key_nor_text(
    hermes_019: Installed, home: Path, server: EchoServer
) -> None:
    (home / "config.yaml").write_text(configured(server, minSimilarity=0.1))
    python = ("--hermes-python", str(hermes_019.python))
    said = [outside(home, "apply", *python, *more) for more in ((), ("--dry-run",), ("--json",))]
    said += inside(hermes_019, home, "backfill", "--dry-run")
    said += inside(hermes_019, home, "backfill")
    found, errors = inside(hermes_019, home, "search", "--json", TEXT)
    assert TEXT in found and not any(secret in found for secret in canaries.SECRETS)
    said += [errors, outside(home, "status"), outside(home, "status", "--json"), kept(home)]
    (home / "state.db-journal").unlink(missing_ok=True)
    assert files_with_a_secret(home) == []
    said += [outside(home, "revert", *python), outside(home, "revert", "--purge", *python)]
    assert not canaries.shown("\n".join(said)), said


@pytest.mark.parametrize("mode", ["fine", "401", "400", "echo"])
def test_doctor_shows_neither_key_nor_text(
    hermes_019: Installed, home: Path, server: EchoServer, mode: str
) -> None:
    pytest.importorskip("hermes_patch.doctor")
    (home / "config.yaml").write_text(configured(server))
    server.mode = mode
    python = ("--hermes-python", str(hermes_019.python))
    for more in ((), ("--json",), ("--fix",)):
        said = outside(home, "doctor", *python, *more)
        assert "doctor: error" not in said and said.strip()
        assert not canaries.shown(said), said


@pytest.mark.parametrize("mode", ["401", "400", "hang", "echo"])
def test_messages_written_while_the_server_fails_are_not_shown(
    hermes_019: Installed, home: Path, server: EchoServer, mode: str
) -> None:
    (home / "config.yaml").write_text(configured(server))
    deploy.apply(home, hermes_python=hermes_019.python)
    server.mode = mode
    done = hermes_019.run(LIVE, home=home)
    assert json.loads(done.stdout.splitlines()[-1])[1] or mode == "400", done.stdout
    assert not canaries.shown(done.stdout.splitlines()[-1])
    logs = "".join(p.read_text(errors="replace") for p in home.glob("logs/*.log"))
    assert not any(secret in done.stderr + logs for secret in canaries.SECRETS)
    assert not canaries.shown(kept(home))
    assert not canaries.shown(outside(home, "status"))


WRONG: dict[str, dict[str, Any]] = {
    "a list as key": {"remote": {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": [KEY]}},
    "a key that is none": {"remote": {"baseUrl": "http://127.0.0.1:9", "apiKey": f"{KEY}\u200b"}},
    "no scheme": {"remote": {"baseUrl": f"{USER}:{PASSWORD}@127.0.0.1:9/v1", "apiKey": KEY}},
    "another scheme": {"remote": {"baseUrl": f"ftp://{USER}:{PASSWORD}@h/v1"}},
    "a port that is none": {"remote": {"baseUrl": f"http://{USER}:{PASSWORD}@h:x/v1"}},
    "key in the query": {"remote": {"baseUrl": f"http://h/v1?api_key={KEY}"}},
    "a wrong number": {"remote": {"baseUrl": "http://h/v1", "apiKey": KEY}, "timeout": "soon"},
    "a list as address": {"remote": {"baseUrl": [f"http://{USER}:{PASSWORD}@h/v1"]}},
    "no mapping": {"remote": KEY},
}


@pytest.mark.parametrize("block", WRONG.values(), ids=WRONG)
def test_a_wrong_configuration_is_named_without_the_key(
    tmp_path: Path, block: dict[str, Any]
) -> None:
    block = {"provider": "openai", "model": "m", **block}
    with pytest.raises(HermesPatchError) as caught:
        config.parse(block)
    assert not canaries.shown(chain(caught.value))
    whole = {"agents": {"defaults": {"memorySearch": block}}}
    (tmp_path / "config.yaml").write_text(json.dumps(whole))
    for words in (("status",), ("status", "--json"), ("apply",)):
        assert not canaries.shown(outside(tmp_path, *words))


def test_a_broken_config_file_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"agents: [\n  apiKey: {KEY}\n {TEXT}: ]: {{")
    for words in (("status",), ("apply",)):
        assert not canaries.shown(outside(tmp_path, *words))


def chain(error: BaseException) -> str:
    """Return an error as it is shown, and all that led to it, shown or not."""
    said = ["".join(traceback.format_exception(error))]
    seen: list[BaseException | None] = [error]
    while seen:
        link = seen.pop()
        if link is not None:
            said.append(f"{link} {link!r} {vars(link)}")
            seen += [link.__cause__, link.__context__]
    return "\n".join(said)


def answering(mode: str) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        said = f"{request.headers.get('Authorization')} {request.content.decode()}"
        if mode == "refused":
            raise httpx.ConnectError(f"cannot reach {request.url} with {said}", request=request)
        if mode == "broken":
            raise RuntimeError(said)
        if mode == "redirect":
            return httpx.Response(302, headers={"Location": f"http://h/?k={KEY}"}, text=said)
        if mode == "vector":
            return httpx.Response(200, json={"data": [{"index": 0, "embedding": said}]})
        if mode == "index":
            return httpx.Response(200, json={"data": [{"index": said, "embedding": [1.0]}]})
        word = json.loads(request.content)["input"][0].split()[-1]
        code = {"code": KEY, "type": word, "message": said}
        return httpx.Response(int(mode), json={"error": code, **code})

    return answer


def settings(**more: Any) -> config.Settings:
    remote = {"baseUrl": f"http://{USER}:{PASSWORD}@127.0.0.1:9/v1", "apiKey": KEY}
    return config.parse({"provider": "openai", "model": "m", "remote": remote, **more})


@pytest.mark.parametrize("verb", ["embed_query", "embed_documents"])
@pytest.mark.parametrize(
    "mode", ["400", "401", "403", "404", "413", "418", "429", "500", "503", "refused", "broken",
             "redirect", "vector", "index"],
)  # fmt: skip
def test_no_error_of_an_embedder_holds_a_key_or_a_text(mode: str, verb: str) -> None:
    transport = httpx.MockTransport(answering(mode))
    embedder = OpenAIEmbedder(settings(), transport, sleep=lambda seconds: None)
    try:
        result = embedder.embed_query(TEXT, 5) if verb == "embed_query" else ()
        result = result or embedder.embed_documents([TEXT, TEXT_CJK])
    except EmbedderError as error:
        watched = Guard()
        watched.note("query", error)
        assert not canaries.shown(chain(error) + repr(watched.failures()))
    else:
        assert all(isinstance(item, Item) and item.reason for item in result)
        assert not canaries.shown(repr(result))


def test_a_foreign_error_that_quotes_a_text_is_not_passed_on() -> None:
    watched = Guard()
    watched.run("search", lambda: int(f"{TEXT} {KEY}"), 0)
    assert not canaries.shown(repr(watched.failures()))


def objects(tmp_path: Path) -> dict[str, object]:
    """Return one of everything that handles keys or texts."""
    chosen = settings()
    embedder = OpenAIEmbedder(chosen)
    engine = Engine(tmp_path / "state.db", lambda: chosen, owned=True)
    assert engine.settings is chosen and engine.embedder is not None
    pending = store.PendingMessage(1, "s", "user", TEXT, "h")
    chunk = texts.chunks(TEXT, 100)[0]
    asked = query.parse(TEXT)
    database = HomeDatabase(lambda: None, tmp_path / "state.db")
    call = recall.Call(search_messages, object(), {"query": TEXT})
    message = rows.Message(1, "s", "user", TEXT, TEXT, 0.0, None, "cli", None, 0.0)
    return {
        "Settings": chosen,
        "Embedder": embedder,
        "Exchange": embedder._exchange,
        "Form": embedder._form,
        "Engine": engine,
        "Indexer": engine.indexer,
        "Worker": worker.Worker(engine),
        "Host": Host(),
        "HomeDatabase": database,
        "Plan": Plan(1, 1, f"by {chosen.host}"),
        "indexer plan": indexer._Plan([pending], [pending], {}, {"h": [chunk]}),
        "Item": Item(None, "too long", permanent=True),
        "Skip": store.Skip(1, "h", "too long", True),
        "PendingMessage": pending,
        "Message": message,
        "Chunk": chunk,
        "Query": asked,
        "tokens": list(query._tokens(TEXT)),
        "Request": search.Request(TEXT),
        "Call": call,
        "QueryVector": QueryVector([0.1], None, ""),
        "Neighbour": Neighbour(1, "s", 0, 5, 0.5, "h"),
        "child's Request": client.Request(1, 1, {"do": "embed", "texts": [TEXT]}, 1.0),
    }


def search_messages(self: object, query: str) -> list[dict[str, Any]]:
    return []


NAMES = (
    "Settings", "Embedder", "Exchange", "Form", "Engine", "Indexer", "Worker", "Host",
    "HomeDatabase", "Plan", "indexer plan", "Item", "Skip", "PendingMessage", "Message", "Chunk",
    "Query", "tokens", "Request", "Call", "QueryVector", "Neighbour", "child's Request",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_nothing_shows_a_key_or_a_text_in_its_repr(tmp_path: Path, name: str) -> None:
    made = objects(tmp_path)
    assert set(made) == set(NAMES)
    assert not canaries.shown(f"{made[name]!r} {made[name]}")


def test_the_announcement_of_what_is_sent_names_the_host_alone() -> None:
    said = deploy.describe_sending(settings())
    assert "127.0.0.1:9" in said and not canaries.shown(said)


def test_a_query_is_no_part_of_what_is_said_of_a_search() -> None:
    assert isinstance(query.parse(TEXT), Query)
    trace = recall.Trace({}, {}, {"status": "ok"})
    assert not canaries.shown(repr(trace))


LEAKS = f"""
import logging
import sys
from pathlib import Path

import targets

python = targets.Installed(targets.CI[1], Path(sys.executable), Path("/"))
log = logging.getLogger("hermes_patch.worker")


def test_a_record(tmp_path):
    log.debug("failed: %s", {KEY!r})


def test_a_traceback(tmp_path):
    try:
        raise ValueError({TEXT_CJK!r})
    except ValueError:
        log.warning("failed", exc_info=True)


def test_a_process(tmp_path):
    python.run("import sys; print({PASSWORD!r}, file=sys.stderr)", home=tmp_path)


def test_a_process_that_goes_on(tmp_path):
    code = "import sys; print('hermes_patch: {TEXT}', file=sys.stderr)"
    python.popen(code, home=tmp_path).communicate()


def test_a_log_of_hermes(tmp_path):
    (tmp_path / "logs").mkdir()
    lines = ["Traceback (most recent call last):", "  File hermes_patch/host.py", "E: {TEXT}"]
    (tmp_path / "logs" / "agent.log").write_text("\\n".join(lines))
    python.run("", home=tmp_path)
"""
HARMLESS = f"""
from test_leaks import log, python


def test_it(tmp_path):
    log.warning("search failed")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "agent.log").write_text("agent: the user says {TEXT}")
    python.run("", home=tmp_path)
"""


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs tests in another process, watched as this run is."""
    for name in ("conftest.py", "canaries.py", "targets.py"):
        shutil.copy(TESTS / name, tmp_path / name)
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    (tmp_path / "test_harmless.py").write_text(HARMLESS)

    def run(name: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        return subprocess.run(
            [*line, "--rootdir", tmp_path, tmp_path / name], capture_output=True, encoding="utf-8"
        )

    return run


def test_a_run_that_shows_a_canary_fails(
    run_of: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = run_of("test_leaks.py")
    assert "5 passed" in done.stdout and done.returncode == 1, done.stdout + done.stderr
    told = done.stdout.partition("a key or a text was shown")[2]
    assert told.count("logger hermes_patch.worker") == 2
    assert told.count("errors of") == 2 and told.count("agent.log") == 1


def test_a_run_that_shows_nothing_of_ours_passes(
    run_of: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = run_of("test_harmless.py")
    assert "1 passed" in done.stdout and done.returncode == 0, done.stdout + done.stderr
