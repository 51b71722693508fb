"""``calibrate``: an estimate of the floor, and one value put into config.yaml."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hermes_patch import calibration, cli, deploy
from hermes_patch.calibration import Pairs, Passage
from hermes_patch.deploy import yaml_edit, yaml_value
from hermes_patch.errors import DeployError, HermesPatchError
from stub_server import StubServer
from targets import Installed

PATH = ["agents", "defaults", "memorySearch", "minSimilarity"]


def passage(lineage: int, angle: float, text: str = "") -> Passage:
    return Passage(lineage, text or f"{lineage} {angle}", [math.cos(angle), math.sin(angle)])


def test_pairs_are_of_two_conversations_and_two_texts() -> None:
    questions = [passage(n, 0.0, "same") for n in range(12)]
    passages = [passage(n, 1.0) for n in range(60)] + [passage(99, 0.0, "same")]
    pairs = calibration.compare(questions, passages)
    assert len(pairs.random) == 12 * 59 and len(pairs.nearest) == 12
    assert pairs.nearest == pytest.approx([math.cos(1.0)] * 12)


@pytest.mark.parametrize(("questions", "passages"), [(9, 60), (12, 49), (0, 0)])
def test_too_little_to_go_by_is_said(questions: int, passages: int) -> None:
    with pytest.raises(HermesPatchError, match="too little to go by"):
        calibration.compare(
            [passage(-n - 1, 0.0) for n in range(questions)],
            [passage(n, 1.0) for n in range(passages)],
        )


def test_the_floor_keeps_out_what_chance_gives() -> None:
    pairs = Pairs(random=[n / 1000 for n in range(401)], nearest=[0.6] * 20)
    assert pairs.recommended == 0.38


def test_the_floor_never_keeps_out_half_of_the_nearest() -> None:
    pairs = Pairs(random=[0.5] * 100, nearest=[0.2] * 10 + [0.4] * 10)
    assert pairs.recommended == 0.3


@given(st.lists(st.floats(-1, 1), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_among_the_values(values: list[float], share: float) -> None:
    assert min(values) <= calibration.quantile(values, share) <= max(values)


def test_the_histogram_shows_both_kinds_of_pairs_and_both_floors() -> None:
    pairs = Pairs(random=[0.05, 0.1, 0.1, 0.15], nearest=[0.45, 0.5])
    data = calibration.result(pairs, "some-model", 0.3)
    assert data["random"]["histogram"] == [[0.05, 0.25], [0.1, 0.5], [0.15, 0.25]]
    printed = calibration.lines(data)
    assert "some-model" in printed[0]
    assert [line for line in printed if "floor in use 0.30" in line][0].startswith(" 0.30")
    assert [line for line in printed if "recommended 0.1" in line][0].startswith(" 0.10")


# One value in a YAML file


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "agents:\n  defaults:\n    memorySearch:\n      minSimilarity: 0.3\n"),
        (
            "a: 1  # one\n",
            "a: 1  # one\nagents:\n  defaults:\n    memorySearch:\n      minSimilarity: 0.3\n",
        ),
        (
            "agents:\n  defaults:\n    model: x # keep\nz: 1\n",
            "agents:\n  defaults:\n    model: x # keep\n    memorySearch:\n"
            "      minSimilarity: 0.3\nz: 1\n",
        ),
        (
            "agents:\n  defaults:\n    memorySearch:\n      minSimilarity: 0.25  # mine\n",
            "agents:\n  defaults:\n    memorySearch:\n      minSimilarity: 0.3  # mine\n",
        ),
        (
            "agents: {defaults: {memorySearch: {provider: local}}}\n",
            "agents: {defaults: {memorySearch: {provider: local, minSimilarity: 0.3}}}\n",
        ),
        (
            "agents:\r\n  defaults:\r\n    memorySearch:\r\n",
            "agents:\r\n  defaults:\r\n    memorySearch:\r\n      minSimilarity: 0.3\r\n",
        ),
        (
            "agents: {}\n",
            "agents: {defaults: {memorySearch: {minSimilarity: 0.3}}}\n",
        ),
    ],
)
def test_a_value_is_put_in_and_nothing_else_changes(before: str, after: str) -> None:
    assert yaml_value.put(before, PATH, 0.3) == after
    assert yaml_value.put(after, PATH, 0.3) == after


@pytest.mark.parametrize(
    "text", ["[1]", "agents: 3\n", "agents:\n  defaults: [1]\n", "x: &a {b: 1}\nagents: *a\n"]
)
def test_a_file_that_has_something_else_there_is_left_alone(text: str) -> None:
    with pytest.raises(yaml_edit.NoEdit):
        yaml_value.put(text, PATH, 0.3)


def test_what_cannot_be_edited_is_to_be_written_by_hand(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("base: &b {defaults: {}}\nagents: *b\n")
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(DeployError, match=r"minSimilarity: 0\.3 there by hand"):
        deploy.set_value(tmp_path, "minSimilarity", 0.3)
    assert (tmp_path / "config.yaml").read_bytes() == before


# The command on a real Hermes

FILL = """
import os
from pathlib import Path
from hermes_state import SessionDB

db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
words = "disk printer garden invoice holiday server kitchen bicycle lamp violin".split()
for n in range(30):
    db.create_session(f"s{n}", source="cli")
    for m in range(3):
        text = f"note {n} about the {words[(n + m) % 10]} and the {words[(n * m) % 10]}"
        db.append_message(f"s{n}", "user", text)
db.close()
"""


def calibrate(home: Path, hermes: Installed, *options: str, capsys: Any) -> tuple[int, Any]:
    line = ["calibrate", "--hermes-home", str(home), "--hermes-python", str(hermes.python)]
    code = cli.main([*line, "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def test_a_real_store_is_measured_and_the_value_written(
    hermes_019: Installed, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StubServer() as server:
        (home / "config.yaml").write_text("# mine\n" + server.config())
        hermes_019.run(FILL, home=home)
        deploy.apply(home, hermes_python=hermes_019.python)
        code, data = calibrate(home, hermes_019, capsys=capsys)
        assert (code, data["ok"]) == (1, False) and "backfill" in data["error"]
        line = ["backfill", "--hermes-home", str(home), "--hermes-python", str(hermes_019.python)]
        assert cli.main([*line, "--json"]) == 0
        capsys.readouterr()
        before = (home / "config.yaml").read_bytes()
        code, data = calibrate(home, hermes_019, capsys=capsys)
        assert code == 0 and data["nearest"]["n"] == 60 and not data["written"]
        assert (home / "config.yaml").read_bytes() == before
        code, data = calibrate(home, hermes_019, "--write", capsys=capsys)
    assert data["written"] and data["random"]["p50"] <= data["nearest"]["p50"]
    text = (home / "config.yaml").read_text()
    block = yaml.safe_load(text)["agents"]["defaults"]["memorySearch"]
    assert text.startswith("# mine\n") and block["minSimilarity"] == data["recommended"]
