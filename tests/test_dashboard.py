"""The search box of the real dashboard, over HTTP: hits by meaning, and nobody waits for them."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import targets
from dashboards import Dashboard, web_packages
from hermes_patch import deploy, keystrokes, overview
from hermes_patch.embedders.base import PROBE_TEXT
from stub_server import StubServer
from targets import Installed

SCRIPTS = Path(__file__).parent / "scripts"
BY_MEANING = "Tuya bulbs hub lamps"
"""No message has all of these words; the nearest to them is in the session "bulbs"."""


def backfill(hermes: Installed, home: Path) -> None:
    code = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"
    path = str(home / "plugins" / "hermes_patch")
    arguments = ("backfill", "--hermes-home", str(home), "--json")
    hermes.run(code, *arguments, home=home, env={"PYTHONPATH": path})


def prepared(hermes: Installed, folder: Path, config: str | None) -> Path:
    """Return a patched home with an embedded history; its name has blanks and other letters."""
    home = folder / "my 家 für Hermes"
    home.mkdir(parents=True)
    if config is not None:
        (home / "config.yaml").write_text(config)
    hermes.run(SCRIPTS / "history.py", home=home)
    deploy.apply(home, hermes_python=hermes.python)
    backfill(hermes, home)
    return home


@dataclass
class Rig:
    """A running dashboard, and the server that its vectors come from."""

    dashboard: Dashboard
    server: StubServer

    @property
    def sent(self) -> list[str]:
        """The texts that reached the server, without the probe sentence."""
        return [text for text in self.server.texts if text != PROBE_TEXT]

    def pause(self) -> None:
        """Do what a person does between two queries: for queries in a burst nobody waits."""
        time.sleep(2 * keystrokes.BURST)

    def type(self, text: str) -> list[list[str]]:
        """Type *text* letter by letter without waiting; what was found each time."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            typed = [pool.submit(self.dashboard.found, text[: n + 1]) for n in range(len(text))]
            return [future.result() for future in typed]


@pytest.fixture(scope="module")
def rig(hermes_019: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with StubServer() as server:
        config = server.config(minSimilarity=0.35, queryBudget=2.0)
        home = prepared(hermes_019, tmp_path_factory.mktemp("dashboard"), config)
        server.texts.clear()
        with Dashboard(hermes_019, home) as dashboard:
            yield Rig(dashboard, server)


def test_a_query_that_rests_finds_a_session_by_meaning_alone(rig: Rig) -> None:
    first = rig.dashboard.search(BY_MEANING)
    assert [result["session_id"] for result in first] == ["bulbs"]
    assert "Tuya bulbs" in first[0]["snippet"]
    assert rig.sent == [BY_MEANING]
    assert rig.dashboard.found(BY_MEANING) == ["bulbs"]
    assert rig.sent == [BY_MEANING]  # known by now


def test_typing_sends_one_request_and_the_last_query_is_answered(rig: Rig) -> None:
    rig.server.texts.clear()
    typed = "flat sourdough starter oven"
    assert len(typed) >= 20
    rig.type(typed)
    for _ in range(50):
        if rig.dashboard.found(typed) == ["bread"]:
            break
    assert rig.dashboard.found(typed) == ["bread"]
    assert rig.sent == [typed]


def test_keywords_are_found_as_ever(rig: Rig) -> None:
    assert rig.dashboard.found("dock por")[:1] == ["docker"]
    assert rig.dashboard.found('"port conflict"') == ["docker"]
    assert rig.dashboard.found("ft") == ["ftp"]


def test_a_request_without_the_token_sends_nothing(rig: Rig) -> None:
    before = rig.server.requests
    url = f"{rig.dashboard.url}/api/sessions/search?q=never+asked+before"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        opener.open(url, timeout=30)
    assert rig.server.requests == before


def test_with_a_hanging_server_the_dashboard_goes_on_and_asks_it_once(rig: Rig) -> None:
    """Last of this rig: the server hangs from here on."""
    rig.server.mode = "hang"
    rig.server.texts.clear()
    rig.server.received.clear()
    rig.pause()
    answers: list[list[str]] = []
    waiting = threading.Thread(target=lambda: answers.append(rig.dashboard.found("port docker")))
    waiting.start()
    assert rig.server.received.wait(30)
    others = 0
    while waiting.is_alive():
        rig.dashboard.get("/api/dashboard/themes")
        others += waiting.is_alive()
    waiting.join()
    assert others > 0  # answered while that search still waited for the server
    assert answers == [["docker"]]
    typed = "docker port conflict 8"
    assert len(typed) >= 20
    found = rig.type(typed)
    assert all(sessions[:1] == ["docker"] for sessions in found[5:])
    assert rig.sent == ["port docker"]
    assert "Traceback" not in rig.dashboard.output


LOADED = """
import importlib, json, os, sys, uvicorn
uvicorn.run = lambda *args, **kwargs: None
from hermes_cli.main import main
sys.argv = ["hermes", "dashboard", "--no-open"]
try:
    main()
except SystemExit:
    pass
assert "hermes_cli.web_server" in sys.modules
print("\\n" + json.dumps("hermes_patch" in sys.modules))
"""


def loaded_in_dashboard(hermes: Installed, home: Path) -> bool:
    """Tell whether our package is loaded when the dashboard begins to serve."""
    assets = home.parent / "web"
    (assets / "assets").mkdir(parents=True)
    (assets / "index.html").write_text("<html></html>")
    env = {"PYTHONPATH": str(web_packages()), "HERMES_WEB_DIST": str(assets)}
    return bool(hermes.run_json(LOADED, home=home, env=env))


def starts(hermes: Installed) -> bool:
    """Tell whether the wheel has all of its dashboard: that of 0.15.2 lacks a package."""
    cli = hermes.site / "hermes_cli"
    text = (cli / "web_server.py").read_text(encoding="utf-8")
    return "hermes_cli.dashboard_auth" not in text or (cli / "dashboard_auth").is_dir()


@pytest.mark.parametrize("target", targets.BESIDE_019, indirect=True)
def test_every_release_finds_by_meaning_or_says_that_it_cannot(
    hermes: Installed, tmp_path: Path
) -> None:
    with StubServer() as server:
        home = prepared(hermes, tmp_path, server.config(minSimilarity=0.35))
        lines = "\n".join(overview.lines(overview.gather(home)))
        if "dashboard loads no plugins" in lines:
            assert loaded_in_dashboard(hermes, home) is False
            return
        if not starts(hermes):
            pytest.skip("this wheel lacks a package of its own dashboard")
        with Dashboard(hermes, home) as dashboard:
            assert dashboard.found(BY_MEANING) == ["bulbs"]
            assert dashboard.found("dock por")[:1] == ["docker"]
            assert "Traceback" not in dashboard.output


def test_smart_home_finds_the_tuya_bulbs_with_the_local_model(
    hermes_019: Installed, tmp_path: Path
) -> None:
    home = prepared(hermes_019, tmp_path, None)
    with Dashboard(hermes_019, home) as dashboard:
        deadline = time.monotonic() + 60  # the model's process has to start first
        while not (found := dashboard.found("smart home")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found[:1] == ["bulbs"]
