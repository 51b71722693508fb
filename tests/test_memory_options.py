"""The options of the memory: each by its name, wrong ones refused, the engine's by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_patch.embedders import profiles
from hermes_patch.errors import ConfigError
from hermes_patch.memory.options import OPTIONS, load, parse

REMOTE = {"provider": "openai", "model": "bge-m3", "remote": {"baseUrl": "https://a.example/v1"}}


def test_without_a_block_the_engine_decides(home: Path) -> None:
    (home / "config.yaml").write_text(
        json.dumps({"agents": {"defaults": {"memorySearch": REMOTE}}, "memory": {"provider": "x"}})
    )
    options = load(home)
    assert options.settings.model == "bge-m3" and options.settings.host == "a.example"
    assert options.path == home / "semantic_memory.db"
    assert (options.top_k, options.dedupe_on_write, options.recency_weight) == (5, True, 0.0)
    assert (options.recency_half_life_days, options.canonical_weight) == (30.0, 0.0)


def test_thresholds_and_floor_are_those_of_the_model(home: Path) -> None:
    block = {"endpoint": "http://127.0.0.1:11434/v1", "model": "nomic-embed-text"}
    options = parse(block, None, home)
    assert (options.min_score, options.duplicate_threshold, options.ambiguous_threshold) == (
        0.58,
        0.92,
        0.80,
    )
    assert options.settings.document_prefix == "search_document: "
    local = parse(None, None, home)
    assert local.duplicate_threshold == profiles.PROFILES[profiles.LOCAL].duplicate


def test_every_option_is_accepted_by_its_name(home: Path) -> None:
    given: dict[str, Any] = {
        "endpoint": "https://b.example/v1",
        "apiKey": "k",
        "model": "m",
        "dims": 256,
        "prefixes": True,
        "docPrefix": "d: ",
        "queryPrefix": "q: ",
        "topK": 3,
        "minScore": 0.5,
        "recencyWeight": 0.1,
        "recencyHalfLifeDays": 7,
        "canonicalWeight": 0.2,
        "duplicateThreshold": 0.9,
        "ambiguousThreshold": 0.7,
        "dedupeOnWrite": False,
        "accelerate": False,
        "dbPath": "elsewhere/notes.db",
        "budget": 1,
        "idleMinutes": 5,
        "keepDays": 2,
        "judge": True,
    }
    assert set(given) == set(OPTIONS)
    options = parse(given, REMOTE, home)
    settings = options.settings
    assert (settings.model, settings.host, settings.dimensions) == ("m", "b.example", 256)
    assert (settings.document_prefix, settings.query_prefix) == ("d: ", "q: ")
    assert (settings.accelerate, settings.api_key) == ("false", "k")
    assert options.path == home / "elsewhere/notes.db" and options.judge
    assert (options.top_k, options.min_score, options.dedupe_on_write) == (3, 0.5, False)
    assert (options.duplicate_threshold, options.ambiguous_threshold) == (0.9, 0.7)
    assert (options.budget_seconds, options.idle_minutes, options.keep_days) == (1, 5, 2)


def test_prefixes_can_be_turned_off(home: Path) -> None:
    block = {"endpoint": "http://localhost/v1", "model": "nomic-embed-text", "prefixes": False}
    assert parse(block, None, home).settings.document_prefix == ""


def test_another_embedder_takes_no_key_of_the_engines_server(home: Path) -> None:
    engine = {**REMOTE, "remote": {**REMOTE["remote"], "apiKey": "secret"}, "minSimilarity": 0.9}  # type: ignore[dict-item]
    options = parse({"endpoint": "https://b.example/v1", "model": "m"}, engine, home)
    assert options.settings.api_key == "" and options.min_score == 0.4
    local = parse({"model": profiles.LOCAL}, engine, home)
    assert local.settings.provider == "local"


def test_numbers_may_come_as_text_from_a_dialogue(home: Path) -> None:
    assert parse({"topK": "7", "dedupeOnWrite": "false"}, None, home).top_k == 7


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"topk": 5}, "did you mean topK"),
        ({"topK": "many"}, "expected a whole number"),
        ({"topK": 0}, "not in 1"),
        ({"minScore": True}, "expected a number"),
        ({"duplicateThreshold": 0.5, "ambiguousThreshold": 0.6}, "above duplicateThreshold"),
        (["x"], "expected a mapping"),
    ],
)
def test_what_is_wrong_is_named(home: Path, block: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(block, None, home)


def test_with_the_engine_off_a_model_of_its_own_is_needed(home: Path) -> None:
    with pytest.raises(ConfigError, match="provider: off"):
        parse({}, {"provider": "off"}, home)
    assert parse({"model": profiles.LOCAL}, {"provider": "off"}, home).settings.enabled
