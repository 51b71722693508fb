"""``hermes semantic`` in a terminal and ``/semantic`` in the chat, on real Hermes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_patch import commands, deploy, plugin
from hermes_patch.errors import HermesPatchError
from hermes_patch.inside import chat
from stub_server import StubServer
from targets import CI, MATRIX, Installed, provide

SCRIPTS = Path(__file__).parent / "scripts"
_OTHERS = [CI[1], *MATRIX]
RELEASES = [pytest.param(CI[2], id=CI[2].name)] + [
    pytest.param(target, id=target.name, marks=pytest.mark.matrix) for target in _OTHERS
]
# Runs several command lines of Hermes, each as if it had a process of its own.
TERMINAL = """
import contextlib, io, json, sys
from hermes_cli.main import main
results = []
for words in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["hermes", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    results.append([code or 0, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
# What Hermes does with a slash command: outside a loop, and on one as its gateway does.
SLASH = """
import asyncio, inspect, json, sys, time
from hermes_cli import plugins
plugins.discover_plugins()
if "force" in inspect.signature(plugins.discover_plugins).parameters:
    plugins.discover_plugins(force=True)
handler = plugins.get_plugin_command_handler("semantic")
said = {words: handler(words) for words in json.loads(sys.argv[1])}

async def gateway():
    result = handler("")
    waited = asyncio.iscoroutine(result)
    return waited, await result

package = sys.modules["hermes_patch"]
print(json.dumps({
    "said": said, "gateway": asyncio.run(gateway()), "active": package.status()["active"],
    "failures": package.status()["failures"],
}))
"""


@pytest.fixture(scope="module", params=RELEASES)
def hermes(request: pytest.FixtureRequest) -> Installed:
    """The newest release; with the mark "matrix" all that offer plugins commands."""
    return provide(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[StubServer]:
    with StubServer() as running:
        yield running


@pytest.fixture(scope="module")
def applied(
    hermes: Installed, server: StubServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A patched home with a history, made once for a release."""
    home = tmp_path_factory.mktemp("a home é") / "home"
    home.mkdir()
    (home / "config.yaml").write_text(server.config(minSimilarity=0.2, queryBudget=2))
    hermes.run(SCRIPTS / "history.py", home=home)
    deploy.apply(home, hermes_python=hermes.python)
    return home


def test_the_commands_in_a_terminal(hermes: Installed, applied: Path) -> None:
    search = ["semantic", "search"]
    lines = [
        ["semantic", "backfill", "--json"],
        [*search, "the port", "conflict", "--json"],
        ["semantic", "status", "--json"],
        [*search, " "],
        [*search, "x", "--limit", "0"],
        ["semantic", "--help"],
    ]
    results = hermes.run_json(TERMINAL, json.dumps(lines), home=applied)
    assert [code for code, _, _ in results] == [0, 0, 0, 1, 2, 0], results
    filled, found, status, empty, usage, help_ = results
    assert json.loads(filled[1])["stored"] == 10
    hits = json.loads(found[1])
    assert (hits["query"], hits["semantic"]["status"]) == ("the port conflict", "ok")
    assert hits["results"][0]["session_id"] == "docker"
    assert json.loads(status[1])["home"] == str(applied)
    assert json.loads(status[1])["database"]["coverage"]["embedded"] == 10
    assert empty[2].strip() == ("hermes semantic search: the query is empty; say what you look for")
    assert "expected a whole number of at least 1" in usage[2]
    assert all(name in help_[1] for name in ("status", "search", "backfill", "doctor"))


def test_the_command_in_the_chat(hermes: Installed, applied: Path) -> None:
    words = ["", "status", "search the port conflict", "search", "doctor", "help me"]
    found = hermes.run_json(SLASH, json.dumps(words), home=applied)
    said = found["said"]
    assert said["status"] == said[""] and "can be found by meaning" in said[""]
    assert "docker" in said["search the port conflict"]
    assert "hermes semantic doctor" in said["doctor"]
    assert "search WORDS" in said["search"] and "search WORDS" in said["help me"]
    assert found["gateway"] == [True, said[""]]
    assert found["active"] and found["failures"] == []


def test_in_the_chat_a_hanging_server_costs_the_query_budget_and_words_still_find(
    hermes: Installed, applied: Path, server: StubServer
) -> None:
    server.mode = "hang"
    try:
        found = hermes.run_json(SLASH, '["search an unseen port question"]', home=applied)
    finally:
        server.mode = "fine"
    said = found["said"]["search an unseen port question"]
    assert "meaning was not searched" in said and "Traceback" not in said


def test_status_works_where_hermes_brings_no_pyyaml_and_doctor_says_what_is_missing(
    hermes: Installed, applied: Path
) -> None:
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        f"sys.path.insert(0, {str(applied / 'plugins' / 'hermes_patch')!r})\n"
        "from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = hermes.run(code, "status", "--hermes-home", applied, home=applied, check=False)
    assert done.returncode == 0 and "model     stub" in done.stdout, done.stderr
    done = hermes.run(code, "doctor", "--hermes-home", applied, home=applied, check=False)
    assert done.returncode == 1 and "yaml is not in Hermes's Python" in done.stderr


def test_registering_loads_nothing_heavy(hermes: Installed, applied: Path) -> None:
    code = (
        "import json, sys\nfrom hermes_cli import plugins\nplugins.discover_plugins()\n"
        "ours = [n for n in sys.modules if n.startswith('hermes_patch.')]\n"
        "print(json.dumps([ours, 'numpy' in sys.modules, 'sqlite_vec' in sys.modules]))"
    )
    ours, *heavy = hermes.run_json(code, home=applied)
    assert "hermes_patch.commands" in ours and heavy == [False, False]
    assert not {"hermes_patch.cli", "hermes_patch.inside.chat", "hermes_patch.overview"} & set(ours)


# -- without Hermes: contexts it never had ------------------------------------------------


class Context:
    """A plugin context of some release; keeps what was registered."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def register_command(self, name: str, handler: Any) -> None:
        self.names.append(name)


def test_only_what_a_release_takes_is_offered() -> None:
    commands.register(object())
    commands.register(SimpleNamespace(register_cli_command=lambda words: 1 / 0))
    context = Context()
    commands.register(context)
    commands.register(context)
    assert context.names == ["semantic", "semantic"]


@pytest.mark.parametrize("error", [RuntimeError("private words"), HermesPatchError("ours")])
def test_a_context_that_raises_neither_reaches_hermes_nor_keeps_the_patch_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_ctx: object) -> None:
        raise error

    noted: list[tuple[str, Exception]] = []
    calls: list[str] = []
    monkeypatch.setattr(commands, "register", refuse)
    monkeypatch.setattr("hermes_patch.install", lambda: calls.append("install"))
    monkeypatch.setattr("hermes_patch.note", lambda *what: noted.append(what))
    plugin.register(object())
    assert calls == ["install"] and noted == [("commands", error)]


def test_an_answer_in_the_chat_is_bounded_and_in_plain_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(*_args: object) -> str:
        raise ValueError("private words")

    monkeypatch.setattr(chat, "_answer", answer)
    said = chat.answer("", None)
    assert "ValueError" in said and "private words" not in said
    release = threading.Event()
    monkeypatch.setattr(chat, "SECONDS", 0.05)
    monkeypatch.setattr(chat, "_answer", lambda *_args: str(release.wait(60)))
    assert "no answer within" in chat.answer("", None)
    release.set()
