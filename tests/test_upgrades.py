"""One home under one release of Hermes after another, up and down again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import targets
from conftest import provide
from hermes_patch import deploy, overview
from stub_server import StubServer
from targets import Installed

SCRIPT = Path(__file__).parent / "scripts" / "upgrade.py"
SHORT = ("hermes-0.9.0", "hermes-0.19.0", "hermes-0.22.2")
RELEASES = sorted(
    (*targets.CI, *targets.MATRIX),
    key=lambda target: tuple(map(int, target.name.partition("-")[2].split("."))),
)
SYNONYMS = {
    "storage": "disk",
    "lamps": "bulbs",
    "loaf": "bread",
    "automobile": "car",
    "physician": "doctor",
    "infant": "baby",
    "forest": "woods",
    "ocean": "sea",
    "kitten": "cat",
    "bicycle": "bike",
}
"""What is asked: what was said instead, a pair for every release."""


MAKES_MORE = 26
"""The schema since which more of Hermes than its SessionDB makes tables in state.db."""


class Synonyms(StubServer):
    """A server for which the two words of each pair mean the same."""

    def _payload(self, texts: list[str], status: int) -> dict[str, Any]:
        return super()._payload([SYNONYMS.get(text, text) for text in texts], status)


@pytest.fixture
def server() -> Iterator[Synonyms]:
    with Synonyms() as running:
        yield running


class Home:
    """A home that is upgraded, and beside it one that never knew us."""

    def __init__(self, folder: Path) -> None:
        self.patched, self.plain = folder / "home", folder / "plain"
        for home in (self.patched, self.plain):
            home.mkdir()
        self.turns: list[tuple[str, str, str]] = []

    def turn(self, hermes: Installed) -> dict[str, Any]:
        """Let a release write a session in both homes; what it then found with the plugin."""
        query, said = list(SYNONYMS.items())[RELEASES.index(hermes.target)]
        session, word = f"turn{len(self.turns)}", f"zebra{len(self.turns)}"
        self.turns.append((session, query, word))
        given: dict[str, Any] = {
            "session": session,
            "texts": [f"{said} {word}", f"{said} second {word}"],
            "queries": sorted({query for _, query, _ in self.turns}),
            "words": [word for _, _, word in self.turns],
        }
        alone = json.dumps({**given, "whole": hermes.target.schema >= MAKES_MORE})
        plain = hermes.run_json(SCRIPT, alone, home=self.plain)
        whole = json.dumps({**given, "whole": True})
        asked = hermes.run_json(SCRIPT, whole, home=self.patched)
        self.check(hermes, asked, plain)
        return dict(asked)

    def check(self, hermes: Installed, asked: dict[str, Any], plain: dict[str, Any]) -> None:
        where = f"{hermes.target.name}, turn {len(self.turns)}"
        assert asked["inside"]["active"] and asked["inside"]["refusals"] == {}, where
        assert asked["idle"] and asked["vectors"] == 2 * len(self.turns), where
        for session, query, _ in self.turns:
            assert asked["meaning"][query].get(session) == "vector", (where, session)
        assert (asked["integrity"], asked["foreign_keys"]) == ("ok", 0), where
        for _, _, word in self.turns:
            assert plain["keyword"][word], (where, word)
        for key in ("schema", "messages", "keyword"):
            assert asked[key] == plain[key], (where, key)
        owned = asked["schema_version"] == 7 and plain["schema_version"] == 6
        assert owned or asked["schema_version"] == plain["schema_version"], where


def chain(folder: Path, server: Synonyms, releases: list[Installed]) -> None:
    home = Home(folder)
    config = server.config(minSimilarity=0.35, queryBudget=5.0)
    (home.patched / "config.yaml").write_text(config)
    deploy.apply(home.patched, hermes_python=releases[0].python)
    for hermes in (*releases, *releases[-2::-1]):
        home.turn(hermes)
    said = [text for text in server.texts if "zebra" in text]
    assert len(said) == len(set(said)) == 2 * len(home.turns)
    state = overview.gather(home.patched)
    assert state["ok"] and state["database"]["coverage"]["ratio"] == 1.0


def test_vectors_triggers_and_search_survive_an_upgrade_and_the_way_back(
    tmp_path: Path, server: Synonyms
) -> None:
    chain(tmp_path, server, [provide(it) for it in RELEASES if it.name in SHORT])


@pytest.mark.matrix
@pytest.mark.slow
def test_vectors_triggers_and_search_survive_every_release_up_and_down(
    tmp_path: Path, server: Synonyms
) -> None:
    chain(tmp_path, server, [provide(it) for it in RELEASES])
