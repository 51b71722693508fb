"""The memory provider in real releases of Hermes, through its own loader and manager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_patch import deploy
from targets import CI, MATRIX, Installed, provide

SCRIPT = Path(__file__).parent / "scripts" / "memory_live.py"
TARGETS = [pytest.param(MATRIX[0], marks=pytest.mark.matrix), CI[1], CI[2]]
COFFEE = "The user prefers dark roast coffee in the morning."
SERVER = "用户的服务器放在杭州的机房里"
OLD, NEW = "The staging database listens on 5433.", "The staging database listens on port 6000."


def ask(hermes: Installed, home: Path, *steps: str) -> list[Any]:
    found = hermes.run_json(SCRIPT, json.dumps(steps), home=home)
    assert found["loaded"] == []
    return list(found["answers"])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_one_session_keeps_another_recalls_and_every_hook_is_taken(
    target: Any, home: Path
) -> None:
    hermes = provide(target)
    (home / "config.yaml").write_text("memory:\n  provider: semantic\n")
    deploy.apply(home, hermes_python=hermes.python, memory=True)
    assert deploy.apply(home, hermes_python=hermes.python).changed is False
    first = ask(
        hermes,
        home,
        "available",
        f'tool(action="add", text={COFFEE!r})["outcome"]',
        f'tool(action="add", text={SERVER!r})["outcome"]',
        f'built_in(action="add", target="memory", content={OLD!r})',
        "settle()",
    )
    assert first == [True, "added", "added", True, True]
    second = ask(
        hermes,
        home,
        "settle()",
        'block("what kind of coffee do they drink?")',
        'block("服务器在哪个城市？")',
        "notes()",
        f'made.on_memory_write("replace", "memory", {NEW!r}, metadata={{"old_text": {OLD!r}}})',
        "settle()",
        "notes()",
        'made.on_pre_compress([{"role": "user", "content": "x"}])',
        "made.on_session_end([])",
        'made.on_turn_start(1, "hi", model="m")',
        'made.on_session_switch("s2", parent_session_id="s1", reset=True)',
        'made.on_delegation("t", "r", child_session_id="c")',
        'made.sync_all("u", "a", session_id="s1")',
        'made.queue_prefetch_all("coffee", session_id="s1")',
        "settle()",
        'tool(action="forget", id=999)["success"]',
        'provider.status()["failures"] + provider.status()["seams"]',
    )
    assert COFFEE in second[1] and SERVER in second[2]
    assert OLD in second[3] and NEW in second[6] and OLD not in second[6]
    assert second[-2:] == [False, []]
    deploy.revert(home, hermes_python=hermes.python)
    assert not (home / "plugins" / "semantic").exists()
    assert (home / "semantic_memory.db").exists()
